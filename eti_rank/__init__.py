"""eti-rank: reranking on SGLang that spends compute where the ranking is still undecided."""

__version__ = "0.1.0"
