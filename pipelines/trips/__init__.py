"""Public trip files to events. Start with `replay.py`; what is in the files is in `data/README.md`."""
