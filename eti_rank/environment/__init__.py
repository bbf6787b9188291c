"""How the environment is made: pins, set-up and the stand-ins for machines without a GPU."""
