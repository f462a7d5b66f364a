"""Small heads on a model's hidden states, which guess what it will say: Medusa's and EAGLE's."""
