"""What runs inside SGLang's processes."""
