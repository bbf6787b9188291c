"""Small random-weight checkpoints, as a hub would serve them: configuration, weights, tokenizer."""

from pathlib import Path

VOCABULARY = 2000
CHATML = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
SPECIAL_TOKENS = {
    "llama": CHATML,
    "qwen2": CHATML,
    "qwen3": (*CHATML, "<think>", "</think>"),
    "gemma": ("<pad>", "<eos>", "<bos>", "<start_of_turn>", "<end_of_turn>"),
}
PLAIN_ADDED_TOKENS = frozenset({"<think>", "</think>"})
"""Added to Qwen3's vocabulary without being marked as special."""

_CORPUS = (
    "Judge whether the Document meets the requirements based on the Query and the Instruct provided. "
    'Note that the answer can only be "yes" or "no". Given a query A and a passage B, determine whether '
    "the passage contains an answer to the query by providing a prediction of either 'Yes' or 'No'. "
    "system user assistant instruction: query: document: relevance 0 1 Write a question that this text "
    "answers. The gravitational pull of the Moon raises and lowers the level of the sea twice a day. "
)


def make_tiny_tokenizer(folder: Path, architecture: str = "llama") -> Path:
    """Write a byte-level BPE ``tokenizer.json`` with the architecture's special tokens; its path."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = SPECIAL_TOKENS[architecture]
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(special),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([_CORPUS] * 4, trainer)
    for content in special:
        token = AddedToken(content, special=content not in PLAIN_ADDED_TOKENS, normalized=False)
        tokenizer.add_special_tokens([token]) if token.special else tokenizer.add_tokens([token])
    path = folder / "tokenizer.json"
    tokenizer.save(str(path))
    return path


def make_tiny_checkpoint(folder: Path, architecture: str = "llama") -> Path:
    """Write two layers of 64 dimensions with fixed random weights; its folder."""
    import torch
    import transformers
    from transformers import PreTrainedTokenizerFast

    tokenizer_file = make_tiny_tokenizer(folder, architecture)
    special = SPECIAL_TOKENS[architecture]
    PreTrainedTokenizerFast(tokenizer_file=str(tokenizer_file), eos_token=special[0]).save_pretrained(folder)
    make_tiny_tokenizer(folder, architecture)  # as a hub serves it, without transformers' rewriting
    name = architecture.capitalize()
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=1024,
        initializer_range=0.2,
        bos_token_id=None,
        eos_token_id=VOCABULARY - len(special),
        pad_token_id=None,
        tie_word_embeddings=True,
    )
    getattr(transformers, f"{name}ForCausalLM")(config).save_pretrained(folder)
    return folder
