"""Scripts that keep the project's own data files up to date."""
