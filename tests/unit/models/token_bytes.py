"""What tokens stand for, in bytes, without a tokenizer's own decoder."""

import re
from collections.abc import Sequence
from itertools import count

from tokenizers import Tokenizer

from tests.tiny_models import PLAIN_ADDED_TOKENS, SPECIAL_TOKENS

_ADDED = frozenset(t for ts in (*SPECIAL_TOKENS.values(), *PLAIN_ADDED_TOKENS.values()) for t in ts)
_PRINTABLE = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
_OTHERS = zip((byte for byte in range(256) if byte not in _PRINTABLE), count(256), strict=False)
_BYTE_OF_CHARACTER = {chr(byte): byte for byte in _PRINTABLE} | {chr(code): byte for byte, code in _OTHERS}
"""GPT-2's alphabet: printable bytes stand for themselves, the others for the code points from 256 on."""


def bytes_of(tokenizer: Tokenizer, ids: Sequence[int]) -> bytes:
    """Bytes that these tokens stand for."""
    sentencepiece = tokenizer.token_to_id("<0x00>") is not None
    return b"".join(_bytes(tokenizer.id_to_token(token) or "", sentencepiece) for token in ids)


def _bytes(token: str, sentencepiece: bool) -> bytes:
    if token in _ADDED:
        return token.encode()
    if not sentencepiece:
        return bytes(_BYTE_OF_CHARACTER[character] for character in token)
    if match := re.fullmatch("<0x([0-9A-F]{2})>", token):
        return bytes([int(match[1], 16)])
    return token.replace("▁", " ").encode()
