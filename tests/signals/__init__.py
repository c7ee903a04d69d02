"""What operators are given to see with: alert rules, a dashboard, and what a broken dependency looks like."""
