"""`hailstream demo`: the whole loop on real trips. Read `run.py` for what happens, in the order in which it happens."""
