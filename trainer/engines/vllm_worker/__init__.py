"""What runs inside vLLM's processes, which have this folder on their path, and the wire that the trainer shares."""
