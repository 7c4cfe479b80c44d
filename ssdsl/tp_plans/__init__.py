"""Plans of transformers: what their styles do with weights and with values, and what a model computes under one."""
