"""One page for the episodes and curves of a run."""
