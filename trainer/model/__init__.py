"""The language model: network, tokenizer, chat renderer, attention over packed sequences, log-probabilities."""
