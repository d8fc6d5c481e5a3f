"""Recording and alerting rules as code."""
