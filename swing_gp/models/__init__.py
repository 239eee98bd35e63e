"""What people call: interpolation, regression, the choice of settings, masks for attention."""
