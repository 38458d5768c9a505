"""`fleet model`: locks of models, and what of them hosts have."""
