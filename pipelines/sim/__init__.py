"""The dispatch service of the demo and the drivers that answer it. Start with `dispatch.py`."""
