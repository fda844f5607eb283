"""Every check and every test of the project, in the order in which they fail fastest."""
