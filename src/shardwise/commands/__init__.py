"""What the commands do: a file for each verb of the command line, and what several of them share."""
