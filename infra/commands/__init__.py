"""The verbs of the `hailstream` command, one file for each group. Each verb calls one function of a room and prints."""
