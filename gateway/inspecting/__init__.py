"""`ostiary check`: would this configuration serve, and does everything that it names exist?"""
