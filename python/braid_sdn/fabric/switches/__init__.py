"""Rules for switches, and consistent updates of them."""
