"""Operations on logits and attention: a plain reference each, and fast versions beside it."""
