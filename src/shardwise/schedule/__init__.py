"""When things happen inside of a step, as a value: what is sent, awaited and multiplied, in which order."""
