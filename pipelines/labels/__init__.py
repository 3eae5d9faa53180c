"""Labels, declared in YAML, one file a strategy: what outcome makes a decision's sample positive or negative, and by when."""
