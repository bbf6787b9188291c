"""The product's core: from a request to a ranking."""
