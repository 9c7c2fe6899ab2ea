"""Reports: findings and facts out, in several forms."""
