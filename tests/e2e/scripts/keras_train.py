"""Two epochs of a Keras model with Horovod on generated data."""

import horovod.tensorflow.keras as hvd
import numpy
import tensorflow as tf

hvd.init()
source = numpy.random.default_rng(hvd.rank())
features = source.normal(size=(256, 8)).astype("float32")
labels = (features.sum(axis=1) > 0).astype("float32")
model = tf.keras.Sequential(
    [tf.keras.layers.Dense(8, activation="relu"), tf.keras.layers.Dense(1, activation="sigmoid")]
)
model.compile(optimizer=hvd.DistributedOptimizer(tf.keras.optimizers.SGD(0.1 * hvd.size())), loss="binary_crossentropy")
callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback()]
history = model.fit(features, labels, batch_size=32, epochs=2, verbose=0, callbacks=callbacks)
weight = float(hvd.allreduce(model.trainable_variables[0][0][0], op=hvd.Average))
same = abs(weight - float(model.trainable_variables[0][0][0])) < 1e-6
first, last = history.history["loss"][0], history.history["loss"][-1]
print(f"keras on {hvd.size()} ranks: same weights {same}, loss fell {last < first}", flush=True)
