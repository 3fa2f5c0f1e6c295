"""Planning: which programs are legal, what each costs, which is best, and why."""
