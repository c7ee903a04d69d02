"""The record's pages under `/review`: for auditors all of it, for everybody what was refused to them."""
