"""The paper's two clinical experiments, on made-up and on real patients."""
