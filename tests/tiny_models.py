"""Small random-weight checkpoints, as a hub would serve them: configuration, weights, tokenizer.

Each tokenizer is built like the one of its architecture: the same normaliser, pre-tokeniser, post-processor
and kinds of added tokens, on a vocabulary of a few hundred tokens.
"""

import json
from pathlib import Path
from typing import Any

VOCABULARY = 2000
CHATML = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
SPECIAL_TOKENS = {
    "llama": CHATML,
    "qwen2": CHATML,
    "qwen3": CHATML,
    "gemma": ("<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>"),
}
PLAIN_ADDED_TOKENS = {
    "llama": (),
    "qwen2": ("<tool_call>", "</tool_call>"),
    "qwen3": ("<tool_call>", "</tool_call>", "<think>", "</think>"),
    "gemma": ("\n", "\n\n", "\n\n\n", "<table>"),
}
"""Added to the vocabulary without being marked as special."""

_CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] "
    "+ '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_QWEN_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
    r"\s+(?!\S)|\s+"
)
_CORPUS = (
    "Judge whether the Document meets the requirements based on the Query and the Instruct provided. "
    'Note that the answer can only be "yes" or "no". Given a query A and a passage B, determine whether '
    "the passage contains an answer to the query by providing a prediction of either 'Yes' or 'No'. "
    "system user assistant instruction: query: document: relevance 0 1 Write a question that this text "
    "answers. The gravitational pull of the Moon raises and lowers the level of the sea twice a day.",
    "the sea\n",
    "the sea\n\n",
    "twice a day.\n\n\n",
)


def make_tiny_tokenizer(folder: Path, architecture: str = "llama") -> Path:
    """Write a ``tokenizer.json`` with the architecture's special tokens; its path."""
    from tokenizers import AddedToken

    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = _sentencepiece_like() if architecture == "gemma" else _byte_level(architecture)
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS[architecture]]
    )
    tokenizer.add_tokens(
        [AddedToken(token, special=False, normalized=False) for token in PLAIN_ADDED_TOKENS[architecture]]
    )
    if architecture == "gemma":
        _add_beginning_of_text(tokenizer)
    path = folder / "tokenizer.json"
    tokenizer.save(str(path))
    return path


def _byte_level(architecture: str) -> Any:
    from tokenizers import (
        Regex,
        Tokenizer,
        decoders,
        models,
        normalizers,
        pre_tokenizers,
        processors,
        trainers,
    )

    tokenizer = Tokenizer(models.BPE())
    if architecture.startswith("qwen"):
        tokenizer.normalizer = normalizers.NFC()
        words: Any = pre_tokenizers.Split(Regex(_QWEN_WORDS), "isolated")
        by_byte = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    else:
        words = pre_tokenizers.Digits(individual_digits=True)
        by_byte = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([words, by_byte])
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - 100,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_CORPUS * 4, trainer)
    return tokenizer


def _sentencepiece_like() -> Any:
    """Special tokens in the vocabulary beside words, spaces as ``▁``, unknown characters as bytes."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    special = [*SPECIAL_TOKENS["gemma"], *PLAIN_ADDED_TOKENS["gemma"], *(f"<0x{n:02X}>" for n in range(256))]
    options = {"byte_fallback": True, "fuse_unk": True, "unk_token": "<unk>"}
    trained = Tokenizer(models.BPE(**options))
    trained.normalizer = normalizers.Replace(" ", "▁")
    trained.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split("▁", "merged_with_next"), pre_tokenizers.Punctuation()]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - 100, special_tokens=special, initial_alphabet=["<", ">"], show_progress=False
    )
    trained.train_from_iterator(_CORPUS * 4, trainer)
    model = json.loads(trained.to_str())["model"]
    vocabulary, merges = model["vocab"], [tuple(merge) for merge in model["merges"]]
    # SentencePiece models are converted with a merge for every pair of pieces that spells a third one, so
    # that merges lead into control tokens and into runs of line breaks.
    for left, right in (("<", "b"), ("<b", "o"), ("<bo", "s"), ("<bos", ">"), ("\n", "\n"), ("\n\n", "\n")):
        vocabulary.setdefault(left + right, len(vocabulary))
        merges.append((left, right))
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, **options))
    tokenizer.normalizer = trained.normalizer
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return tokenizer


def _add_beginning_of_text(tokenizer: Any) -> None:
    from tokenizers import processors

    bos = ("<bos>", tokenizer.token_to_id("<bos>"))
    tokenizer.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[bos])


def make_tiny_checkpoint(folder: Path, architecture: str = "llama", *, with_experts: bool = False) -> Path:
    """Write two layers of 64 dimensions with fixed random weights; its folder.

    Args:
        folder: to write to.
        architecture: as SGLang and transformers name it, in lower case.
        with_experts: its mixture-of-experts form, 2 of 8 experts per token (qwen2 and qwen3 have one).
    """
    import torch
    import transformers
    from transformers import PreTrainedTokenizerFast

    tokenizer_file = make_tiny_tokenizer(folder, architecture)
    end = {"gemma": "<eos>"}.get(architecture, "<|endoftext|>")
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(tokenizer_file), eos_token=end)
    tokenizer.chat_template = _CHAT_TEMPLATE
    tokenizer.save_pretrained(folder)
    make_tiny_tokenizer(folder, architecture)  # as a hub serves it, without transformers' rewriting
    name = architecture.capitalize()
    experts: dict[str, Any] = {}
    if with_experts:
        name, experts = (
            f"{name}Moe",
            {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64},
        )
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
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=None,
        tie_word_embeddings=not with_experts,  # SGLang's mixtures do not tie them
        **experts,
    )
    getattr(transformers, f"{name}ForCausalLM")(config).save_pretrained(folder)
    return folder
