"""Each model's own way to make its prompt, told again from its published code."""

from tokenizers import Tokenizer

ARCHITECTURES = {
    "smollm2-135m-instruct": "llama",
    "qwen3-reranker-0.6b": "qwen3",
    "bge-reranker-v2-gemma": "gemma",
    "mxbai-rerank-base-v2": "qwen2",
}
"""Shipped profile -> architecture of its model, as `tests.tiny_models` names it."""


def published(
    profile: str, tokenizer: Tokenizer, query: str, document: str, instruction: str | None
) -> list[int]:
    """Token ids of one pair's prompt."""

    def ids(text: str) -> list[int]:
        return list(tokenizer.encode(text, add_special_tokens=False).ids)

    if profile == "smollm2-135m-instruct":  # our own: one user turn, the query as the answer
        turn = f"{document}\n\nWrite a question that this text answers.<|im_end|>\n<|im_start|>assistant\n"
        return ids("<|im_start|>user\n") + ids(turn) + ids(query)
    if profile == "qwen3-reranker-0.6b":
        prefix = (
            "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and "
            'the Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>\n'
            "<|im_start|>user\n"
        )
        suffix = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
        task = instruction or "Given a web search query, retrieve relevant passages that answer the query"
        pair = f"<Instruct>: {task}\n<Query>: {query}\n<Document>: {document}"
        return ids(prefix) + ids(pair) + ids(suffix)
    if profile == "bge-reranker-v2-gemma":
        task = (
            "Given a query A and a passage B, determine whether the passage contains an answer to the query "
            "by providing a prediction of either 'Yes' or 'No'."
        )
        bos = tokenizer.token_to_id("<bos>")
        return [bos, *ids(f"A: {query}"), *ids("\n"), *ids(f"B: {document}"), *ids("\n"), *ids(task)]
    prefix = (
        "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n"
        "<|im_start|>user\n"
    )
    task = (
        "You are a search relevance expert who evaluates how well documents match search queries. For each "
        "query-document pair, carefully analyze the semantic relationship between them, then provide your "
        "binary relevance judgment (0 for not relevant, 1 for relevant).\nRelevance:"
    )
    asked = f"instruction: {instruction}\nquery: {query}" if instruction else f"query: {query}"
    pair = [*ids(asked), *ids("\n"), *ids(f"document: {document}")]
    return [*ids(prefix), *pair, *ids("\n"), *ids(task), *ids("<|im_end|>\n<|im_start|>assistant\n")]
