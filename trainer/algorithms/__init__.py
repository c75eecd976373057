"""What an algorithm is made of: rewards, filters, advantage estimators, masks and policy losses."""
