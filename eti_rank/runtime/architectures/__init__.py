"""Model classes that SGLang registers at once; it imports its 200 others only when one is asked for.

Named to SGLang through ``SGLANG_EXTERNAL_MODEL_PACKAGE``: one module for each architecture of the
shipped profiles.
"""
