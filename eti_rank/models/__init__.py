"""What a model needs: its profile, its prompt as token ids, and the embedded default."""
