"""A forest and a search over two processes, and OpenMP threads."""

import probe

import joblib
from sklearn.cluster import KMeans
from sklearn.datasets import make_classification
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, train_test_split

probe.imported("sklearn")
x, y = make_classification(200, 8, random_state=probe.RANK)
split = train_test_split(x, y, random_state=0)
search = GridSearchCV(LogisticRegression(max_iter=200), {"C": [0.1, 1.0]}, n_jobs=2).fit(split[0], split[2])
probe.result("search", [search.best_params_, search.score(split[1], split[3])])
forest = RandomForestClassifier(20, n_jobs=2, random_state=0).fit(split[0], split[2])
probe.result("forest", forest.score(split[1], split[3]))
probe.result("boosted", HistGradientBoostingClassifier(max_iter=5, random_state=0).fit(x, y).score(x, y))
probe.result("means", KMeans(3, n_init=1, random_state=0).fit(x).inertia_)
probe.result("processes", joblib.Parallel(n_jobs=2)(joblib.delayed(pow)(base, 2) for base in range(4)))
probe.random("split", train_test_split(range(1000))[0][:20])
probe.end()
