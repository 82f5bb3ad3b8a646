/* The hot path of a purgatory in C: see kernel.py.

   Each function in the table TWINS is the twin of a Python function, its definition, which the
   table names. A twin handles the common case. Otherwise it returns PASS before any change, and the
   definition is called with the same arguments. Twins use the objects of the Python classes: they
   read and write the `__slots__`, at the offsets in Python's own descriptors. Five classes keep
   some slots in a base in C, see BASES. An object may lack its `__init__`, then its slots are empty
   (NULL): a twin looks for that, or for the loop of an object, which is set last. Private slots of
   other objects have the types that Python gives them. During a call into Python a twin owns references to
   all objects that it uses afterwards; after the call it reads again all slots that may have
   changed.

   There need be no GIL. What belongs to a loop is changed on its thread alone: lists, counts, records,
   and an operation once it has a home, which one thread gives it (`set_home`). Another thread may
   read any attribute: what refers to an object is stored and read under a lock of the object that
   has it (`LOCKED`); a number is read without one, and may be out of date. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>
#include <math.h>
#include <stddef.h>

#ifndef SOURCE /* CRC-32 of this file, from the build: kernel.py compares it */
#define SOURCE 0
#endif

/* ---- classes, slots and constants passed in by Python, and the names of called Python methods */

#define CLASSES(X) /* name in C, module and name in Python */ \
    X(Entry, "wheel.TimerEntry") X(Bucket, "wheel.Bucket") X(Level, "wheel.Level") \
    X(Wheel, "wheel.TimingWheel") \
    X(Binding, "loop.LoopBinding") \
    X(LoopWheel, "loop.LoopTimingWheel") X(Task, "wheel_timer.TimerTask") \
    X(Timer, "wheel_timer.WheelTimer") X(Timeout, "timeouts.Timeout") \
    X(Operation, "operation.DelayedOperation") X(Dispatcher, "dispatcher.Dispatcher") \
    X(Home, "home.Home") X(Purgatory, "purgatory.Purgatory") X(KeyCheck, "key_check.KeyCheck") \
    X(WatchList, "watch_lists.WatchList") \
    X(Record, "observers.Record") X(Notifier, "observers.Notifier")

#define FIELDS(X) \
    X(Bucket, number) X(Bucket, wheel) \
    X(Level, buckets) X(Level, rate) X(Level, recent) \
    X(Wheel, levels) X(Wheel, _level0_end) X(Wheel, _until) X(Wheel, moves) X(Wheel, _on_empty) \
    X(Wheel, notify_empty) X(Wheel, _budget) X(Wheel, _expiring) X(Binding, time) \
    X(Task, _callback) X(Task, _context) X(Task, _timer) X(Timer, _loop) X(Timer, _time) X(Timer, _wheel) \
    X(Timeout, _state) X(Timeout, _handle) \
    X(Timeout, _when) X(Dispatcher, current) X(Dispatcher, queue) X(Dispatcher, completed) \
    X(Home, _by_key) X(Home, _checks) X(Home, _closed) X(Home, _dispatcher) \
    X(Home, _inbox) X(Home, _loop) X(Home, _loop_wheel) X(Home, _max_pending) \
    X(Home, _notifier) X(Home, _time) X(Home, _wheel) \
    X(KeyCheck, _completed) X(KeyCheck, _home) X(KeyCheck, _tries) X(KeyCheck, key) \
    X(Record, cause) X(Record, failed_tries) X(Record, key) X(Record, keys) \
    X(Record, started_at) X(Notifier, name) X(Notifier, _observers) X(Notifier, _start_observers) \
    X(Notifier, _check_observers)

#define CONSTANTS(X) /* names of constants, from any module */ \
    X(WHEEL_ATTRIBUTE) X(handle) X(running_loop) X(partial) X(CALLED) X(CREATED) X(PENDING) X(COMPLETED) \
    X(EXPIRED) X(CANCELLED) X(NO_RESULT) X(UNWATCHED) X(NO_KEY) X(_set_exception) X(try_failed) \
    X(try_once) X(wake_waiters) \
    X(not_completed) X(keys_of) X(steps_to_leave) X(unique_keys) X(Ended) X(Failure) \
    X(FIRST_TRY) X(FORCED) X(KEY) X(DEADLINE) \
    X(LOOP_TIME) X(TIME)

#define NAMES(X) \
    X(add) X(join) X(emptied) \
    X(look_if_idle_later) X(try_complete) X(on_complete) X(on_expiration) X(done) X(set_result) \
    X(cancelled) X(_op_finish) X(_op_is_decided) X(run_queue) X(continue_later) X(perform) \
    X(_op_validated) X(_may_wait) X(_undo_watch) X(_check_later) X(_check_key) \
    X(_count_missed_trigger) X(_op_is_asynchronous) X(_op_kind) X(operation_ended) X(_failed) X(exception) X(monotonic) \
    X(__asyncio_running_event_loop__)

/* name in C, least and most positional arguments (with `self`), name in Python */
#define TWINS(X) \
    X(wheel_add, 4, 4, "wheel.TimingWheel.add") \
    X(wheel_move_on, 2, 2, "wheel.TimingWheel._move_on") \
    X(wheel_next_due, 2, 2, "wheel.TimingWheel.next_due") \
    X(timer_call_later, 3, 64, "wheel_timer.WheelTimer.call_later") \
    X(task_cancel, 1, 1, "wheel_timer.TimerTask.cancel") \
    X(timeout, 1, 1, "timeouts.timeout") \
    X(timeout_unschedule, 1, 1, "timeouts.Timeout._unschedule") \
    X(op_finish, 1, 2, "operation.DelayedOperation._op_finish") \
    X(op_expired, 1, 1, "operation.DelayedOperation._timer_expired") \
    X(op_init, 1, 2, "operation.DelayedOperation.__init__") \
    X(op_force_complete, 1, 1, "operation.DelayedOperation.force_complete") \
    X(cancel, 1, 2, "operation.cancel") \
    X(purgatory_watch, 3, 3, "purgatory.Purgatory.try_complete_else_watch") \
    X(purgatory_check, 2, 2, "purgatory.Purgatory.check_and_complete") \
    X(lists_join, 3, 3, "watch_lists.WatchLists.join") \
    X(lists_leave, 3, 3, "watch_lists.WatchLists.leave") \
    X(lists_listed, 2, 2, "watch_lists.WatchLists.listed") \
    X(check_try_untried, 3, 3, "key_check.KeyCheck._try_untried")

#define TYPES(X) /* types of this module */ \
    X(Twin_Type) X(ListBase) X(WatchListBase) X(EntryBase) X(OperationBase) X(HomeBase)

typedef struct Twin Twin;

typedef struct {
#define DECLARE_CLASS(name, where) PyTypeObject *name;
    CLASSES(DECLARE_CLASS)
#define DECLARE_FIELD(cls, field) Py_ssize_t cls##_##field;
    FIELDS(DECLARE_FIELD)
#define DECLARE_CONSTANT(name) PyObject *name;
    CONSTANTS(DECLARE_CONSTANT)
#define DECLARE_NAME(name) PyObject *s_##name;
    NAMES(DECLARE_NAME)
#define DECLARE_TWIN(name, ...) Twin *name;
    TWINS(DECLARE_TWIN)
#define DECLARE_TYPE(name) PyTypeObject *name;
    TYPES(DECLARE_TYPE)
    Py_ssize_t missing; /* names that Python has not passed in yet: until then, all twins pass */
} State;

#if PY_VERSION_HEX < 0x030C0000
static PyObject *PyErr_GetRaisedException(void) {
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyErr_NormalizeException(&type, &value, &traceback);
    if (traceback != NULL) PyException_SetTraceback(value, traceback);
    Py_XDECREF(type);
    Py_XDECREF(traceback);
    return value;
}
static void PyErr_SetRaisedException(PyObject *error) {
    PyErr_Restore(Py_NewRef((PyObject *)Py_TYPE(error)), error, PyException_GetTraceback(error));
}
#endif

#if PY_VERSION_HEX < 0x030D0000
#define Py_BEGIN_CRITICAL_SECTION(object) {
#define Py_END_CRITICAL_SECTION() }
static int PyDict_GetItemRef(PyObject *dict, PyObject *key, PyObject **value) {
    *value = Py_XNewRef(PyDict_GetItemWithError(dict, key));
    return *value != NULL ? 1 : PyErr_Occurred() ? -1 : 0;
}
#endif
/* Statements that no other thread may see half done; with a GIL nothing else. */
#define LOCKED(object, ...) \
    do { \
        Py_BEGIN_CRITICAL_SECTION(object); \
        __VA_ARGS__; \
        Py_END_CRITICAL_SECTION(); \
    } while (0)
#ifdef Py_GIL_DISABLED
#define STORE(slot, value) _Py_atomic_store_ptr_release(slot, value)
#define LOAD(slot) _Py_atomic_load_ptr_acquire(slot)
#define LOAD_COUNT(count) _Py_atomic_load_ssize_relaxed(&(count))
#define STEP(count, by) _Py_atomic_add_ssize(&(count), by)
#define GET_STATE(state) _Py_atomic_load_uint8_relaxed(&(state))
#define SET_STATE(state, value) _Py_atomic_store_uint8_relaxed(&(state), value)
#else
#define STORE(slot, value) (*(slot) = (value))
#define LOAD(slot) (*(slot))
#define LOAD_COUNT(count) (count)
#define STEP(count, by) ((count) += (by))
#define GET_STATE(state) (state)
#define SET_STATE(state, value) ((state) = (value))
#endif

#define AT(object, cls, field) (*(PyObject **)((char *)(object) + st->cls##_##field))
#define PUT(object, cls, field, value) \
    put((PyObject *)(object), &AT(object, cls, field), Py_XNewRef(value))
#define ADD(object, cls, field, steps) add_to((PyObject *)(object), &AT(object, cls, field), steps)

/* ---- twins: callables that replace a Python function, and behave like it */

typedef PyObject *(*Function)(Twin *self, PyObject *const *args, Py_ssize_t count);
struct Twin {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    Function function;
    Py_ssize_t least, most; /* positional arguments, `self` included */
    Py_ssize_t passed;      /* how many calls went to the definition */
    PyObject *python;       /* the definition */
    PyObject *module;       /* keeps the state */
    State *st;
};

static PyObject pass_object;
#define PASS (&pass_object)

static PyObject *twin_call(PyObject *callable, PyObject *const *args, size_t flags,
    PyObject *names) {
    Twin *self = (Twin *)callable;
    Py_ssize_t count = PyVectorcall_NARGS(flags);
    if (names == NULL && count >= self->least && count <= self->most && !self->st->missing) {
        PyObject *result = self->function(self, args, count);
        if (result != PASS) return result;
    }
    STEP(self->passed, 1);
    return PyObject_Vectorcall(self->python, args, flags, names);
}

static PyObject *twin_bind(PyObject *self, PyObject *object, PyObject *Py_UNUSED(cls)) {
    return object == NULL ? Py_NewRef(self) : PyMethod_New(self, object);
}

/* attributes of the Python function */
static PyObject *twin_getattr(PyObject *self, PyObject *name) {
    PyObject *value = PyObject_GenericGetAttr(self, name);
    if (value != NULL || !PyErr_ExceptionMatches(PyExc_AttributeError)) return value;
    PyErr_Clear();
    return PyObject_GetAttr(((Twin *)self)->python, name);
}

static PyObject *twin_attribute(PyObject *self, void *name) {
    return PyObject_GetAttrString(((Twin *)self)->python, name);
}

/* by qualified name, as for functions */
static PyObject *twin_reduce(PyObject *self, PyObject *Py_UNUSED(none)) {
    return twin_attribute(self, "__qualname__");
}

/* so that `isinstance` and tools which rely on it, such as `unittest.mock`, find a function */
static PyObject *twin_class(PyObject *self, void *Py_UNUSED(closure)) {
    return Py_NewRef((PyObject *)Py_TYPE(((Twin *)self)->python));
}

static PyObject *twin_repr(PyObject *self) { return PyObject_Repr(((Twin *)self)->python); }

static int twin_traverse(PyObject *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(((Twin *)self)->python);
    Py_VISIT(((Twin *)self)->module);
    return 0;
}

/* no tp_clear: the function's tp_clear breaks the cycle */
static void twin_dealloc(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    Py_XDECREF(((Twin *)self)->python);
    Py_XDECREF(((Twin *)self)->module);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMemberDef twin_members[] = {
    {"__wrapped__", T_OBJECT_EX, offsetof(Twin, python), READONLY, NULL},
    {"passed", T_PYSSIZET, offsetof(Twin, passed), READONLY, NULL},
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Twin, vectorcall), READONLY, NULL}, {0}};
static PyGetSetDef twin_getset[] = {
    {"__class__", twin_class, NULL, NULL, NULL},
    {"__doc__", twin_attribute, NULL, NULL, "__doc__"},
    {"__module__", twin_attribute, NULL, NULL, "__module__"}, {0}};
static PyMethodDef twin_methods[] = {{"__reduce__", twin_reduce, METH_NOARGS, NULL}, {0}};
static PyType_Slot twin_slots[] = {
    {Py_tp_call, PyVectorcall_Call}, {Py_tp_descr_get, twin_bind}, {Py_tp_getattro, twin_getattr},
    {Py_tp_repr, twin_repr}, {Py_tp_members, twin_members}, {Py_tp_getset, twin_getset},
    {Py_tp_methods, twin_methods}, {Py_tp_traverse, twin_traverse}, {Py_tp_dealloc, twin_dealloc},
    {0}};
static PyType_Spec twin_spec = {
    "purgatory._core._kernel.compiled_function", sizeof(Twin), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL
        | Py_TPFLAGS_METHOD_DESCRIPTOR
        | Py_TPFLAGS_DISALLOW_INSTANTIATION, twin_slots};

/* ---- helpers */

static inline int is_a(PyObject *object, PyTypeObject *type) { /* no subclass */
    return object != NULL && Py_IS_TYPE(object, type);
}
static inline int is_kind_of(PyObject *object, PyTypeObject *type) {
    return object != NULL && PyObject_TypeCheck(object, type);
}
static inline int is_float(PyObject *object) {
    return object != NULL && PyFloat_CheckExact(object);
}
static inline int is_int(PyObject *object) { return object != NULL && PyLong_CheckExact(object); }

static inline int is_number(PyObject *object, long long number) {
    int overflow = 0;
    return is_int(object) && PyLong_AsLongLongAndOverflow(object, &overflow) == number && !overflow;
}

static double number_of(PyObject *object) { /* NaN for anything but a float or an int that fits */
    if (is_float(object)) return PyFloat_AS_DOUBLE(object);
    double number = is_int(object) ? PyLong_AsDouble(object) : Py_NAN;
    if (number != -1.0 || !PyErr_Occurred()) return number;
    PyErr_Clear();
    return Py_NAN;
}

static inline PyObject *get(PyObject *value) { /* a new reference; None for a deleted slot */
    return Py_NewRef(value != NULL ? value : Py_None);
}
/* moves the reference `value` into a slot of `object` */
static inline void put(PyObject *object, PyObject **slot, PyObject *value) {
    PyObject *old;
    LOCKED(object, old = *slot; STORE(slot, value));
    Py_XDECREF(old);
}
/* drops a result that is not needed; -1 is an exception */
static inline int done(PyObject *result) {
    if (result == NULL) return -1;
    Py_DECREF(result);
    return 0;
}
/* Restores the exception `error`, or keeps the one raised since; -1. */
static int raise_again(PyObject *error) {
    if (PyErr_Occurred()) Py_XDECREF(error);
    else PyErr_SetRaisedException(error);
    return -1;
}
#define CALL0(object, name) PyObject_CallMethodNoArgs(object, st->s_##name)
#define LENGTH(array) (sizeof(array) / sizeof((array)[0]))
#define CALL(object, name, ...) \
    PyObject_VectorcallMethod(st->s_##name, (PyObject *[]){object, __VA_ARGS__}, \
        LENGTH(((PyObject *[]){object, __VA_ARGS__})), NULL)

/* calls a function in C, such as a clock, directly: half the cost of a call from Python */
static PyObject *call_no_args(PyObject *function) {
    function = get(function); /* the slot that it is in may change during the call */
    int is_plain =
        PyCFunction_CheckExact(function) && PyCFunction_GET_FLAGS(function) == METH_NOARGS;
    PyObject *result = !is_plain ? PyObject_CallNoArgs(function)
        : PyCFunction_GET_FUNCTION(function)(PyCFunction_GET_SELF(function), NULL);
    Py_DECREF(function);
    return result;
}

/* Calls the clock of a loop. asyncio's own is a function in Python that calls `time.monotonic`: to
   call that from here saves 6 % of an operation. It is looked up, since tests replace it. */
static PyObject *read_clock(State *st, PyObject *clock) {
    if (clock == NULL || !PyMethod_Check(clock) || PyMethod_GET_FUNCTION(clock) != st->LOOP_TIME)
        return call_no_args(clock);
    PyObject *monotonic = NULL;
    if (PyDict_GetItemRef(PyModule_GetDict(st->TIME), st->s_monotonic, &monotonic) < 0) return NULL;
    PyObject *now = call_no_args(monotonic != NULL ? monotonic : clock);
    Py_XDECREF(monotonic);
    return now;
}

/* Before 3.12 asyncio asks the system for the process id at each look for the running loop, which takes
   longer than the rest of a twin. There this reads what asyncio reads, and compares the id with that of
   this process, noted at load and after a fork. */
#if PY_VERSION_HEX < 0x030C0000 && !defined(MS_WINDOWS)
#define READS_LOOP 1
#include <pthread.h>
#include <unistd.h>
typedef struct {
    PyObject_HEAD
    PyObject *loop;
    pid_t process;
} Holder; /* as in asyncio */
static pid_t process;
static void note_process(void) { process = getpid(); }
/* loop.running_loop() */
static PyObject *running_loop(State *st) {
    PyObject *all = PyThreadState_GetDict();
    Holder *holder = all == NULL ? NULL
        : (Holder *)PyDict_GetItemWithError(all, st->s___asyncio_running_event_loop__);
    if (holder != NULL && Py_TYPE(holder)->tp_basicsize == sizeof(Holder)
        && holder->process == process && holder->loop != NULL) return Py_NewRef(holder->loop);
    return call_no_args(st->running_loop);
}
#else
#define running_loop(st) call_no_args((st)->running_loop)
#endif

static int is_running(State *st, PyObject *loop) { /* in this thread; -1 is an exception */
    PyObject *running = running_loop(st);
    if (running == NULL) return -1;
    Py_DECREF(running);
    return running == loop;
}

static int add_to(PyObject *object, PyObject **slot, long long steps) { /* a slot with a count */
    long long value = *slot != NULL ? PyLong_AsLongLong(*slot) : -1;
    if (*slot == NULL) PyErr_SetString(PyExc_AttributeError, "a count");
    if (value == -1 && PyErr_Occurred()) return -1;
    PyObject *sum = PyLong_FromLongLong(value + steps);
    if (sum == NULL) return -1;
    put(object, slot, sum);
    return 0;
}

/* ---- BASES of wheel.TimerEntry, wheel.EntryList and watch_lists.WatchList

   A list is a chain of nodes. An entry has one node, for its bucket, and an operation has a link for
   each list of a key that it shares. A list owns the objects of its nodes. A node borrows its list,
   which removes all its nodes before it is freed. */

typedef struct Node Node;
typedef struct {
    PyObject_HEAD
    Node *first, *last;
    Node *untried; /* the first one that the check of the key has still to try */
    Py_ssize_t size;
    PyObject *key; /* NULL in a bucket */
} List;
struct Node {
    List *list;
    Node *before, *after;
};
typedef struct {
    PyObject_HEAD
    Node node;
    double deadline; /* see get_time; 0.0 before it is set */
} Entry;
typedef struct Link {
    Node node;
    struct Link *next; /* of the same operation */
    PyObject *operation;
} Link;
#define LIST(entry) (((Entry *)(entry))->node.list)
#define DEADLINE(entry) (((Entry *)(entry))->deadline)

static inline PyObject *owner(List *list, Node *node) {
    return list->key != NULL ? ((Link *)node)->operation
        : (PyObject *)((char *)node - offsetof(Entry, node));
}
static int append(List *list, Node *node) { /* 0 if it is in a list */
    PyObject *object = owner(list, node);
    int is_free;
    LOCKED(object, if ((is_free = node->list == NULL)) node->list = list);
    if (!is_free) return 0;
    node->before = list->last;
    *(list->last != NULL ? &list->last->after : &list->first) = node;
    list->last = node;
    if (list->untried == NULL) list->untried = node;
    STEP(list->size, 1);
    Py_INCREF(object);
    return 1;
}
static void unlink_node(Node *node) {
    List *list = node->list;
    *(node->before != NULL ? &node->before->after : &list->first) = node->after;
    *(node->after != NULL ? &node->after->before : &list->last) = node->before;
    if (list->untried == node) list->untried = node->after;
    STEP(list->size, -1);
    PyObject *object = owner(list, node);
    node->before = node->after = NULL;
    LOCKED(object, node->list = NULL);
    Py_DECREF(object);
}
static int emptied(State *st, PyObject *list);
static int remove_entry(State *st, PyObject *entry) { /* 0 if it is in no list; -1 is an exception */
    List *list = LIST(entry);
    if (list == NULL) return 0;
    Py_INCREF(list);
    unlink_node(&((Entry *)entry)->node);
    int failed = list->size == 0 && emptied(st, (PyObject *)list);
    Py_DECREF(list);
    return failed ? -1 : 1;
}

static struct PyModuleDef module_def;
static State *state_of(PyObject *self) { /* NULL is an exception */
    PyObject *module = PyType_GetModuleByDef(Py_TYPE(self), &module_def);
    return module == NULL ? NULL : PyModule_GetState(module);
}
/* frees an object of a base after it was cleared; `self` may be of a subclass */
static void free_base(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    type->tp_free(self);
    Py_DECREF(type);
}
static int only_type_traverse(PyObject *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    return 0;
}
static void entry_dealloc(PyObject *self) {
    PyObject_GC_UnTrack(self);
    free_base(self);
}
static int list_traverse(PyObject *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(((List *)self)->key);
    for (Node *node = ((List *)self)->first; node != NULL; node = node->after)
        Py_VISIT(owner((List *)self, node));
    return 0;
}
static int list_clear(PyObject *self) {
    while (((List *)self)->first != NULL) unlink_node(((List *)self)->first);
    Py_CLEAR(((List *)self)->key);
    return 0;
}
static void list_dealloc(PyObject *self) {
    PyObject_GC_UnTrack(self);
    list_clear(self);
    free_base(self);
}
static int list_init(PyObject *self, PyObject *args, PyObject *names) {
    return (void)self, (void)args, (void)names, 0;
}
static Py_ssize_t list_length(PyObject *self) { return LOAD_COUNT(((List *)self)->size); }
static int is_entry(PyObject *self, PyObject *entry) { /* with an exception if not */
    State *st = state_of(self);
    if (st == NULL) return 0;
    if (!PyObject_TypeCheck(entry, st->EntryBase)) PyErr_SetString(PyExc_TypeError, "no entry");
    return !PyErr_Occurred();
}
static PyObject *list_append(PyObject *self, PyObject *entry) {
    if (!is_entry(self, entry)) return NULL;
    if (append((List *)self, &((Entry *)entry)->node)) Py_RETURN_NONE;
    return PyErr_Format(PyExc_ValueError, "it is in a list");
}
static PyObject *list_remove(PyObject *self, PyObject *entry) {
    if (!is_entry(self, entry)) return NULL;
    if (LIST(entry) != (List *)self) Py_RETURN_FALSE;
    return remove_entry(state_of(self), entry) < 0 ? NULL : Py_NewRef(Py_True);
}
static PyObject *list_entries(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    Py_ssize_t most = count && args[0] != Py_None ? PyLong_AsSsize_t(args[0]) : PY_SSIZE_T_MAX;
    PyObject *found = most == -1 && PyErr_Occurred() ? NULL : PyList_New(0);
    Node *node = ((List *)self)->first;
    for (; found != NULL && node != NULL && most > 0; node = node->after, most--)
        if (PyList_Append(found, owner((List *)self, node))) Py_CLEAR(found);
    return found;
}
static PyMethodDef list_methods[] = {
    {"append", list_append, METH_O, NULL}, {"remove", list_remove, METH_O, NULL},
    {"entries", (PyCFunction)(void (*)(void))list_entries, METH_FASTCALL, NULL}, {0}};
static PyType_Slot list_slots[] = {
    {Py_tp_methods, list_methods}, {Py_tp_init, list_init}, {Py_sq_length, list_length},
    {Py_tp_traverse, list_traverse}, {Py_tp_clear, list_clear}, {Py_tp_dealloc, list_dealloc}, {0}};
static PyType_Spec list_spec = {
    "purgatory._core._kernel.EntryList", sizeof(List), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, list_slots};

static PyObject *watch_list_has_untried(PyObject *self, PyObject *Py_UNUSED(none)) {
    return PyBool_FromLong(((List *)self)->untried != NULL);
}
static PyObject *watch_list_rewind(PyObject *self, PyObject *Py_UNUSED(none)) {
    ((List *)self)->untried = ((List *)self)->first;
    Py_RETURN_NONE;
}
static PyMethodDef watch_list_methods[] = {
    {"entries", (PyCFunction)(void (*)(void))list_entries, METH_FASTCALL, NULL},
    {"has_untried", watch_list_has_untried, METH_NOARGS, NULL},
    {"rewind", watch_list_rewind, METH_NOARGS, NULL}, {0}};
static PyType_Slot watch_list_slots[] = {
    {Py_tp_methods, watch_list_methods}, {Py_sq_length, list_length},
    {Py_tp_traverse, list_traverse}, {Py_tp_clear, list_clear}, {Py_tp_dealloc, list_dealloc}, {0}};
static PyType_Spec watch_list_spec = {
    "purgatory._core._kernel.WatchList", sizeof(List), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, watch_list_slots};

/* A time in seconds, in a field of C. NaN represents None. */
static PyObject *get_time(double time) {
    return isnan(time) ? Py_NewRef(Py_None) : PyFloat_FromDouble(time);
}
static int set_time(double *field, PyObject *value) { /* 0.0 if it is deleted */
    double time = value == NULL ? 0.0 : value == Py_None ? Py_NAN : PyFloat_AsDouble(value);
    if (time == -1.0 && PyErr_Occurred()) return -1;
    if (isnan(time) && value != Py_None) {
        PyErr_SetString(PyExc_ValueError, "a time cannot be NaN");
        return -1;
    }
    *field = time;
    return 0;
}
static PyObject *entry_get_deadline(PyObject *self, void *Py_UNUSED(closure)) {
    return get_time(DEADLINE(self));
}
static int entry_set_deadline(PyObject *self, PyObject *value, void *Py_UNUSED(closure)) {
    return set_time(&DEADLINE(self), value);
}
static PyObject *entry_get_bucket(PyObject *self, void *Py_UNUSED(closure)) {
    PyObject *list;
    LOCKED(self, list = get((PyObject *)LIST(self)));
    return list;
}
static int entry_set_bucket(PyObject *self, PyObject *list, void *Py_UNUSED(closure)) {
    if (LIST(self) == NULL && (list == NULL || list == Py_None)) return 0;
    PyErr_SetString(PyExc_TypeError, "an entry joins and leaves by its list");
    return -1;
}
static PyGetSetDef entry_getset[] = {
    {"_timer_bucket", entry_get_bucket, entry_set_bucket, NULL, NULL},
    {"_timer_deadline", entry_get_deadline, entry_set_deadline, NULL, NULL}, {0}};
static PyType_Slot entry_slots[] = {
    {Py_tp_getset, entry_getset}, {Py_tp_traverse, only_type_traverse},
    {Py_tp_dealloc, entry_dealloc}, {0}};
static PyType_Spec entry_spec = {
    "purgatory._core._kernel.Entry", sizeof(Entry), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, entry_slots};

/* ---- BASE of home.OperationSlots, the attributes of an operation

   An operation loses its keys before it gets a result, so both share a field. */

enum { NEW, PENDING, COMPLETED, EXPIRED, CANCELLED }; /* NEW: before its `__init__` */
enum { OWNER, WAITERS, RECORD, RARE, STATE = RARE, TIMEOUT, HOME, KEYS, RESULT };
typedef struct {
    Entry entry;
    double timeout; /* see get_time */
    PyObject *home, *keys_or_result, *weakrefs;
    struct Rare *rare; /* NULL until it is needed */
    uint8_t state, has_result;
} Operation;
typedef struct Rare {
    PyObject *attributes[RARE]; /* the first ones; NULL for None */
    Link *links;
} Rare;
#define OP(operation) ((Operation *)(operation))
#define GET_RARE(operation, which) \
    (LOAD(&OP(operation)->rare) != NULL ? OP(operation)->rare->attributes[which] : NULL)
#define IS(operation, is) (GET_STATE(OP(operation)->state) == (is))

static PyObject *state_object(State *st, int state) { /* borrowed; NULL for NEW */
    PyObject *objects[] = {NULL, st->PENDING, st->COMPLETED, st->EXPIRED, st->CANCELLED};
    return objects[state];
}
static int state_number(State *st, PyObject *object) { /* NEW for another object */
    for (int state = CANCELLED; object != NULL && state > NEW; state--)
        if (object == state_object(st, state)) return state;
    return NEW;
}
static inline PyObject *keys_watched(State *st, PyObject *operation) { /* borrowed */
    PyObject *keys = OP(operation)->keys_or_result;
    return OP(operation)->has_result || keys == NULL ? st->UNWATCHED : keys;
}
static void set_keys_or_result(PyObject *operation, PyObject *value, uint8_t is_result) {
    PyObject *old;
    LOCKED(operation, old = OP(operation)->keys_or_result;
        OP(operation)->keys_or_result = Py_XNewRef(value); OP(operation)->has_result = is_result);
    Py_XDECREF(old);
}
#define set_keys(operation, keys) set_keys_or_result(operation, keys, 0)
#define set_result(operation, result) set_keys_or_result(operation, result, 1)

static Rare *rare_of(PyObject *operation) { /* NULL is an exception */
    LOCKED(operation, if (OP(operation)->rare == NULL)
        STORE(&OP(operation)->rare, PyMem_Calloc(1, sizeof(Rare))));
    if (OP(operation)->rare == NULL) PyErr_NoMemory();
    return OP(operation)->rare;
}
/* moves the reference `value` into an attribute of an operation that has a `Rare` */
static void put_rare(PyObject *operation, size_t which, PyObject *value) {
    put(operation, &OP(operation)->rare->attributes[which], value);
}

static PyObject *home_of(PyObject *operation) { /* a new reference */
    PyObject *home;
    LOCKED(operation, home = get(OP(operation)->home));
    return home;
}
/* An operation has one home, however many threads try: 0 if it has another one. */
static int set_home(PyObject *operation, PyObject *home) {
    PyObject *old;
    LOCKED(operation, old = OP(operation)->home;
        if (home != Py_None && old != NULL && old != Py_None) home = NULL;
        else OP(operation)->home = Py_NewRef(home));
    if (home != NULL) Py_XDECREF(old);
    return home != NULL;
}

static PyObject *op_get(PyObject *self, void *which) {
    State *st = state_of(self);
    Operation *op = OP(self);
    if (st == NULL) return NULL;
    if (IS(self, NEW))
        return PyErr_Format(PyExc_AttributeError, "'%.100s' object has no attribute '_op_state'",
            Py_TYPE(self)->tp_name);
    if ((size_t)which == STATE) return get(state_object(st, GET_STATE(op->state)));
    if ((size_t)which == TIMEOUT) return get_time(op->timeout);
    PyObject *value;
    LOCKED(self, value = get((size_t)which == HOME ? op->home
        : (size_t)which == KEYS ? keys_watched(st, self)
        : (size_t)which != RESULT ? GET_RARE(op, (size_t)which)
        : op->has_result ? op->keys_or_result : st->NO_RESULT));
    return value;
}
static int op_set(PyObject *self, PyObject *value, void *which) { /* deletes if `value` is NULL */
    State *st = state_of(self);
    Operation *op = OP(self);
    if (st == NULL) return -1;
    if ((size_t)which == STATE) {
        int state = state_number(st, value);
        if (state == NEW && value != NULL)
            return PyErr_Format(PyExc_TypeError, "_op_state must be a state") == NULL ? -1 : 0;
        SET_STATE(op->state, (uint8_t)state);
    } else if ((size_t)which == TIMEOUT) return set_time(&op->timeout, value);
    else if ((size_t)which == HOME) {
        if (set_home(self, value != NULL ? value : Py_None)) return 0;
        return PyErr_Format(PyExc_RuntimeError, "another thread watches it") == NULL ? -1 : 0;
    }
    else if ((size_t)which == KEYS) {
        if (value == st->UNWATCHED) value = NULL;
        if (value != NULL || !op->has_result) set_keys(self, value);
    } else if ((size_t)which == RESULT) {
        if (value != NULL && value != st->NO_RESULT) set_result(self, value);
        else if (op->has_result) set_keys(self, NULL);
    } else {
        if (value == Py_None) value = NULL;
        if (value != NULL && rare_of(self) == NULL) return -1;
        if (op->rare != NULL) put_rare(self, (size_t)which, Py_XNewRef(value));
    }
    return 0;
}
static int op_traverse(PyObject *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(OP(self)->home);
    Py_VISIT(OP(self)->keys_or_result);
    for (int i = 0; OP(self)->rare != NULL && i < RARE; i++)
        Py_VISIT(OP(self)->rare->attributes[i]);
    return 0;
}
static int op_clear(PyObject *self) {
    Py_CLEAR(OP(self)->home);
    Py_CLEAR(OP(self)->keys_or_result);
    for (int i = 0; OP(self)->rare != NULL && i < RARE; i++)
        Py_CLEAR(OP(self)->rare->attributes[i]);
    return 0;
}
static void free_links(Link *links) { /* in no list */
    while (links != NULL) {
        Link *link = links;
        links = link->next;
        PyMem_Free(link);
    }
}
static void op_dealloc(PyObject *self) {
    PyObject_GC_UnTrack(self);
    if (OP(self)->weakrefs != NULL) PyObject_ClearWeakRefs(self);
    op_clear(self);
    if (OP(self)->rare != NULL) free_links(OP(self)->rare->links);
    PyMem_Free(OP(self)->rare);
    free_base(self);
}
static PyObject *op_get_home(PyObject *self, void *which) {
    return IS(self, NEW) ? op_get(self, which) : home_of(self); /* in half the time */
}
static PyMemberDef op_members[] = { /* from 3.12 on a `__weakref__` in Python takes 16 bytes */
    {"__weakref__", T_OBJECT, offsetof(Operation, weakrefs), READONLY, NULL},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(Operation, weakrefs), READONLY, NULL}, {0}};
#define ATTRIBUTE(name, which) {name, op_get, op_set, NULL, (void *)(size_t)which}
static PyGetSetDef op_getset[] = {
    {"_op_home", op_get_home, op_set, NULL, (void *)(size_t)HOME},
    ATTRIBUTE("_op_state", STATE), ATTRIBUTE("_op_timeout", TIMEOUT), ATTRIBUTE("_op_keys", KEYS),
    ATTRIBUTE("_op_result", RESULT), ATTRIBUTE("_op_owner", OWNER),
    ATTRIBUTE("_op_waiters", WAITERS), ATTRIBUTE("_op_record", RECORD), {0}};
static PyType_Slot op_slots[] = {
    {Py_tp_members, op_members}, {Py_tp_getset, op_getset}, {Py_tp_traverse, op_traverse},
    {Py_tp_clear, op_clear}, {Py_tp_dealloc, op_dealloc}, {0}};
static PyType_Spec op_spec = {
    "purgatory._core._kernel.Operation", sizeof(Operation), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, op_slots};

/* ---- BASE of home.Home: counts without an integer object for each change */

typedef struct {
    PyObject_HEAD
    Py_ssize_t completed, expired, cancelled, pending, watched;
} Counts;
#define COUNTS(home) ((Counts *)(home))
#define COUNT(name) {"_" #name, T_PYSSIZET, offsetof(Counts, name), 0, NULL}
static PyMemberDef home_members[] = {
    COUNT(completed), COUNT(expired), COUNT(cancelled), COUNT(pending), COUNT(watched), {0}};
static PyType_Slot home_slots[] = {{Py_tp_members, home_members}, {0}};
static PyType_Spec home_spec = {
    "purgatory._core._kernel.Home", sizeof(Counts), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, home_slots};

/* ---- the wheel */

#define ROUND_UP 0.999
#define CLOSE 0.998

/* For functions that return 1, 0, or -1 for an exception: the definition has to do it. */
#define PASSED 2

/* wheel.TimingWheel._open_bucket(self, when), borrowed. NULL, perhaps with an exception, if the
   definition has to look. */
static PyObject *find_bucket(State *st, PyObject *wheel, double at) {
    PyObject *levels = AT(wheel, Wheel, levels), *bucket = NULL;
    int is_far = at > PyFloat_AS_DOUBLE(AT(wheel, Wheel, _level0_end));
    for (Py_ssize_t i = is_far; i < (is_far ? PyList_GET_SIZE(levels) : 1) && bucket == NULL; i++) {
        PyObject *level = PyList_GET_ITEM(levels, i), **recent = &AT(level, Level, recent);
        double rate = PyFloat_AS_DOUBLE(AT(level, Level, rate));
        double ticks = at * rate + (is_far ? 0.0 : ROUND_UP), number = floor(ticks);
        if (!(fabs(number) < 9e18)) return NULL;
        if (!is_far && ticks - number > CLOSE) {
            if (rate != floor(rate)) return NULL;
            if (number / rate < at) number += 1;
        }
        if (*recent != Py_None && is_number(AT(*recent, Bucket, number), (long long)number))
            return *recent;
        PyObject *key = PyLong_FromLongLong((long long)number);
        if (key == NULL) return NULL;
        bucket = PyDict_GetItemWithError(AT(level, Level, buckets), key);
        Py_DECREF(key);
        if (bucket != NULL) PUT(level, Level, recent, bucket); /* which holds the former one, too */
    }
    return bucket;
}

/* wheel.TimingWheel.add(self, entry, when, now) */
static int add_entry(State *st, PyObject *wheel, PyObject *entry, double at, double now) {
    PyObject *bucket = at > now && LIST(entry) == NULL ? find_bucket(st, wheel, at) : NULL;
    if (bucket == NULL) return PyErr_Occurred() ? -1 : PASSED; /* overdue, or NaN, too */
    if (!append((List *)bucket, &((Entry *)entry)->node)) return PASSED;
    DEADLINE(entry) = at;
    return 1;
}
static PyObject *wheel_add(Twin *self, PyObject *const *a, Py_ssize_t Py_UNUSED(count)) {
    State *st = self->st;
    if (!is_a(a[0], st->Wheel) || !is_kind_of(a[1], st->Entry) || !is_float(a[2])
        || !is_float(a[3])) return PASS;
    int added = add_entry(st, a[0], a[1], PyFloat_AS_DOUBLE(a[2]), PyFloat_AS_DOUBLE(a[3]));
    return added == PASSED ? PASS : added < 0 ? NULL : Py_NewRef(Py_None);
}
/* `now` is a float */
static int add_to_wheel(State *st, PyObject *wheel, PyObject *entry, double when, PyObject *now) {
    int added = add_entry(st, wheel, entry, when, PyFloat_AS_DOUBLE(now));
    if (added != PASSED) return added < 0 ? -1 : 0;
    PyObject *at = PyFloat_FromDouble(when);
    int failed = at == NULL || done(CALL(wheel, add, entry, at, now));
    Py_XDECREF(at);
    return failed ? -1 : 0;
}

/* Bucket.emptied */
static int emptied(State *st, PyObject *list) {
    if (!is_a(list, st->Bucket)) return done(CALL0(list, emptied));
    PyObject *wheel = AT(list, Bucket, wheel);
    if (AT(wheel, Wheel, notify_empty) != Py_True) return 0;
    return done(call_no_args(AT(wheel, Wheel, _on_empty)));
}

/* wheel.TimingWheel._move_on(self, entry) */
static PyObject *wheel_move_on(Twin *self, PyObject *const *a, Py_ssize_t Py_UNUSED(count)) {
    State *st = self->st;
    PyObject *entry = a[1], *bucket = is_kind_of(entry, st->Entry) && LIST(entry) != NULL
        ? find_bucket(st, a[0], DEADLINE(entry)) : NULL;
    if (bucket == NULL) return PyErr_Occurred() ? NULL : PASS;
    Py_INCREF(entry); Py_INCREF(bucket);
    int failed = remove_entry(st, entry) < 0 || ADD(a[0], Wheel, moves, 1);
    if (!failed) append((List *)bucket, &((Entry *)entry)->node);
    Py_DECREF(entry); Py_DECREF(bucket);
    return failed ? NULL : Py_NewRef(Py_None);
}

/* wheel.TimingWheel.next_due(self, now) */
static PyObject *wheel_next_due(Twin *self, PyObject *const *a, Py_ssize_t Py_UNUSED(count)) {
    State *st = self->st;
    PyObject *wheel = a[0], *until = AT(wheel, Wheel, _until);
    List *expiring = (List *)AT(wheel, Wheel, _expiring);
    PyObject *entry = expiring->first != NULL ? owner(expiring, expiring->first) : NULL;
    if (PyLong_AsLong(AT(wheel, Wheel, _budget)) <= 0 || entry == NULL
        || !is_float(until) /* a clock may give integers */
        || !(DEADLINE(entry) <= PyFloat_AS_DOUBLE(until))) return PASS;
    Py_INCREF(entry);
    if (ADD(wheel, Wheel, _budget, -1) == 0 && remove_entry(st, entry) >= 0) return entry;
    Py_DECREF(entry);
    return NULL;
}

/* ---- timers */

/* without options, and on its loop; -1 is an exception */
static int timer_is_plain(State *st, PyObject *timer) {
    if (!is_a(timer, st->Timer) || AT(timer, Timer, _wheel) == NULL) return 0;
    return is_running(st, AT(timer, Timer, _loop));
}

/* wheel_timer.WheelTimer.call_later(self, delay, callback, *args) */
static PyObject *timer_call_later(Twin *self, PyObject *const *a, Py_ssize_t count) {
    State *st = self->st;
    PyObject *timer = a[0], *task = NULL, *result = NULL;
    double at = number_of(a[1]);
    if (isnan(at)) return PASS;
    int is_plain = timer_is_plain(st, timer);
    if (is_plain <= 0) return is_plain ? NULL : PASS;
    PyObject *wheel = Py_NewRef(AT(timer, Timer, _wheel));
    PyObject *now = read_clock(st, AT(timer, Timer, _time));
    if (now == NULL) goto out;
    if (!is_float(now)) {
        result = PASS;
        goto out;
    }
    at += PyFloat_AS_DOUBLE(now);
    if ((task = st->Task->tp_alloc(st->Task, 0)) == NULL) goto out;
    AT(task, Task, _timer) = Py_NewRef(timer);
    if ((AT(task, Task, _context) = PyContext_CopyCurrent()) == NULL) goto out;
    AT(task, Task, _callback) = count == 3 ? Py_NewRef(a[2]) :
        PyObject_Vectorcall(st->partial, a + 2, (size_t)(count - 2), NULL);
    if (AT(task, Task, _callback) == NULL) goto out;
    if (add_to_wheel(st, wheel, task, at, now) == 0) result = Py_NewRef(task);
out:
    Py_XDECREF(task); Py_XDECREF(now);
    Py_DECREF(wheel);
    return result;
}

/* wheel_timer.TimerTask.cancel(self) */
static PyObject *task_cancel(Twin *self, PyObject *const *a, Py_ssize_t Py_UNUSED(count)) {
    State *st = self->st;
    PyObject *task = a[0], *timer = is_a(task, st->Task) ? AT(task, Task, _timer) : NULL;
    int is_plain = timer_is_plain(st, timer);
    if (is_plain <= 0) return is_plain ? NULL : PASS;
    if (AT(task, Task, _callback) == NULL) return PASS;
    PyObject *callback = Py_NewRef(AT(task, Task, _callback));
    PUT(task, Task, _callback, Py_None);
    PUT(task, Task, _context, Py_None);
    int removed = remove_entry(st, task);
    if (removed == 0) removed = callback != Py_None && callback != st->CALLED;
    Py_DECREF(callback);
    return removed < 0 ? NULL : PyBool_FromLong(removed);
}

/* timeouts.timeout(delay), on a loop with a wheel of timeouts */
static PyObject *timeout(Twin *self, PyObject *const *a, Py_ssize_t Py_UNUSED(count)) {
    State *st = self->st;
    double delay = number_of(a[0]);
    if (isnan(delay)) return PASS;
    PyObject *loop = running_loop(st), *result = NULL;
    PyObject *loop_wheel = loop ? PyObject_GetAttr(loop, st->WHEEL_ATTRIBUTE) : NULL;
    Py_XDECREF(loop);
    if (loop == NULL) return NULL;
    if (loop_wheel == NULL && !PyErr_ExceptionMatches(PyExc_AttributeError)) return NULL;
    if (!is_a(loop_wheel, st->LoopWheel)) {
        PyErr_Clear();
        Py_XDECREF(loop_wheel);
        return PASS;
    }
    PyObject *now = read_clock(st, AT(loop_wheel, Binding, time)), *when = NULL;
    if (now != NULL && !is_float(now)) result = PASS;
    else if (now != NULL && (when = PyFloat_FromDouble(PyFloat_AS_DOUBLE(now) + delay)) != NULL
        && (result = st->Timeout->tp_alloc(st->Timeout, 0)) != NULL) {
        AT(result, Timeout, _state) = Py_NewRef(st->CREATED);
        AT(result, Timeout, _handle) = Py_NewRef(Py_None);
        AT(result, Timeout, _when) = Py_NewRef(when);
    }
    Py_DECREF(loop_wheel); Py_XDECREF(now); Py_XDECREF(when);
    return result;
}

/* timeouts.Timeout._unschedule(self), of a timeout in the wheel */
static PyObject *timeout_unschedule(Twin *self, PyObject *const *a, Py_ssize_t Py_UNUSED(count)) {
    State *st = self->st;
    if (!is_a(a[0], st->Timeout) || LIST(a[0]) == NULL) return PASS;
    return remove_entry(st, a[0]) < 0 ? NULL : Py_NewRef(Py_None);
}

/* ---- watch lists */

/* removes `key`, if its value is `waiting` */
static int discard(PyObject *by_key, PyObject *key, PyObject *waiting) {
    PyObject *found = PyDict_GetItemWithError(by_key, key);
    if (found != waiting) return PyErr_Occurred() ? -1 : 0;
    return PyDict_DelItem(by_key, key);
}
static int link_operation(List *list, PyObject *operation) {
    Link *link = rare_of(operation) != NULL ? PyMem_Calloc(1, sizeof(Link)) : NULL;
    if (link == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    link->operation = operation;
    link->next = OP(operation)->rare->links;
    OP(operation)->rare->links = link;
    append(list, &link->node);
    return 0;
}

/* the keys of an operation as an array, and their number */
static Py_ssize_t array_of(PyObject **keys, PyObject ***array) {
    int is_tuple = PyTuple_CheckExact(*keys);
    *array = is_tuple ? ((PyTupleObject *)*keys)->ob_item : keys;
    return is_tuple ? PyTuple_GET_SIZE(*keys) : 1;
}

/* watch_lists.WatchLists.leave(self, operation, keys): first the lists, then the keys under which it
   is alone. All of them, though a key may raise. */
static int leave_lists(PyObject *by_key, PyObject *operation, PyObject *keys) {
    PyObject **each, *error = NULL;
    Py_ssize_t number = array_of(&keys, &each), listed = 0;
    Link *links = OP(operation)->rare != NULL ? OP(operation)->rare->links : NULL;
    if (links != NULL) OP(operation)->rare->links = NULL;
    for (Link *link = links; link != NULL; link = link->next) {
        List *list = link->node.list;
        if (list == NULL) continue;
        listed++;
        Py_INCREF(list);
        unlink_node(&link->node);
        if (list->size == 0 && discard(by_key, list->key, (PyObject *)list))
            Py_XSETREF(error, PyErr_GetRaisedException());
        Py_DECREF(list);
    }
    free_links(links);
    for (Py_ssize_t i = 0; listed < number && i < number; i++)
        if (discard(by_key, each[i], operation)) Py_XSETREF(error, PyErr_GetRaisedException());
    return error != NULL ? raise_again(error) : 0;
}
/* watch_lists.WatchLists.listed(self, key): a new reference; NULL, perhaps with an exception, if
   nothing waits */
static PyObject *listed(State *st, PyObject *by_key, PyObject *key) {
    PyObject *waiting = PyDict_GetItemWithError(by_key, key), *list = NULL;
    if (waiting != NULL && !is_a(waiting, st->WatchList)) {
        if ((list = st->WatchList->tp_alloc(st->WatchList, 0)) == NULL) return NULL;
        ((List *)list)->key = Py_NewRef(key);
        waiting = PyDict_GetItemWithError(by_key, key); /* what a finalizer or `__eq__` has left */
    }
    if (waiting == NULL || is_a(waiting, st->WatchList)) {
        Py_XINCREF(waiting);
        Py_XDECREF(list);
        return waiting;
    }
    if (link_operation((List *)list, waiting) || PyDict_SetItem(by_key, key, list)) Py_CLEAR(list);
    else if (((List *)list)->size == 0) { /* a finalizer has ended it */
        (void)discard(by_key, key, list);
        Py_CLEAR(list);
    }
    return list;
}
static int join_list(State *st, PyObject *by_key, PyObject *operation, PyObject *key) {
    for (;;) {
        PyObject *waiting = PyDict_SetDefault(by_key, key, operation);
        if (waiting == operation) return 0;
        PyObject *list = waiting != NULL ? listed(st, by_key, key) : NULL;
        int failed = list != NULL ? link_operation((List *)list, operation) : -1;
        Py_XDECREF(list);
        if (list != NULL || PyErr_Occurred()) return failed;
    }
}
/* watch_lists.WatchLists.join(self, operation, keys) */
static int join_lists(State *st, PyObject *by_key, PyObject *operation, PyObject *keys) {
    PyObject **each;
    Py_ssize_t number = array_of(&keys, &each), joined = 0;
    while (joined < number && !join_list(st, by_key, operation, each[joined])) joined++;
    if (joined == number) return 0;
    PyObject *error = PyErr_GetRaisedException();
    if (leave_lists(by_key, operation, keys)) PyErr_Clear();
    PyErr_SetRaisedException(error);
    return -1;
}
static PyObject *lists_join(Twin *self, PyObject *const *a, Py_ssize_t Py_UNUSED(count)) {
    if (!is_kind_of(a[1], self->st->Operation)) return PASS;
    return join_lists(self->st, a[0], a[1], a[2]) ? NULL : Py_NewRef(Py_None);
}
static PyObject *lists_leave(Twin *self, PyObject *const *a, Py_ssize_t Py_UNUSED(count)) {
    if (!is_kind_of(a[1], self->st->Operation)) return PASS;
    return leave_lists(a[0], a[1], a[2]) ? NULL : Py_NewRef(Py_None);
}
static PyObject *lists_listed(Twin *self, PyObject *const *a, Py_ssize_t Py_UNUSED(count)) {
    PyObject *list = listed(self->st, a[0], a[1]);
    return list == NULL && !PyErr_Occurred() ? Py_NewRef(Py_None) : list;
}

/* home.Home._leave(self, operation) */
static int leave(State *st, PyObject *home, PyObject *operation) {
    PyObject **each,
        *keys = OP(operation)->has_result ? NULL : Py_XNewRef(OP(operation)->keys_or_result);
    int failed = remove_entry(st, operation) < 0;
    if (!failed && keys != NULL) {
        PyObject *by_key = Py_NewRef(AT(home, Home, _by_key)), *wheel;
        set_keys(operation, NULL);
        STEP(COUNTS(home)->pending, -1);
        STEP(COUNTS(home)->watched, -array_of(&keys, &each));
        failed = leave_lists(by_key, operation, keys);
        Py_DECREF(by_key);
        wheel = AT(home, Home, _wheel);
        if (!failed && COUNTS(home)->pending == 0 && AT(wheel, Wheel, notify_empty) == Py_True)
            failed = done(CALL0(AT(home, Home, _loop_wheel), look_if_idle_later));
    }
    Py_XDECREF(keys);
    return failed;
}

/* ---- the life of an operation */

static int is_observed(PyObject *operation) { return GET_RARE(operation, RECORD) != NULL; }
static int is_awaited(PyObject *operation) {
    return GET_RARE(operation, OWNER) != NULL || GET_RARE(operation, WAITERS) != NULL;
}

/* Calls `function` with the raised exception in an `except` block of Python: so it is the handled
   one, and has a frame for that block. */
static int handle(State *st, PyObject *function, PyObject *operation) {
    PyObject *error = PyErr_GetRaisedException();
    int failed = done(PyObject_CallFunctionObjArgs(st->handle, error, function, operation, NULL));
    Py_DECREF(error);
    return failed;
}

/* The event of the end, for observers. */
static void set_cause(State *st, PyObject *operation, PyObject *cause, PyObject *key) {
    PyObject *record = GET_RARE(operation, RECORD);
    if (!is_a(record, st->Record)) return;
    Py_INCREF(record);
    PUT(record, Record, cause, cause);
    PUT(record, Record, key, key);
    Py_DECREF(record);
}

/* operation.claim(operation, home, state, cause): 1 if this call was first; -1 is an exception */
static int claim(State *st, PyObject *operation, PyObject *home, int state, PyObject *cause) {
    if (!IS(operation, PENDING)) return 0;
    SET_STATE(OP(operation)->state, (uint8_t)state);
    set_cause(st, operation, cause, st->NO_KEY);
    if (!is_a(home, st->Purgatory)) return 1;
    Counts *counts = COUNTS(home);
    STEP(*(state == COMPLETED ? &counts->completed : state == EXPIRED ? &counts->expired
        : &counts->cancelled), 1);
    Py_INCREF(home);
    int failed = leave(st, home, operation);
    Py_DECREF(home);
    return failed ? -1 : 1;
}

/* Whether it is an operation whose `__init__` was called. */
static int is_made(State *st, PyObject *operation) {
    return is_kind_of(operation, st->Operation) && !IS(operation, NEW);
}

static int wake(PyObject *future, State *st) {
    PyObject *is_done = CALL0(future, done);
    if (is_done == NULL) return -1;
    int truth = PyObject_IsTrue(is_done);
    Py_DECREF(is_done);
    return truth < 0 ? -1 : truth ? 0 : done(CALL(future, set_result, Py_None));
}

/* operation.wake_waiters(operation) */
static int wake_waiters(State *st, PyObject *operation) {
    PyObject *owner = GET_RARE(operation, OWNER), *waiters = GET_RARE(operation, WAITERS);
    if (waiters != NULL && PyDict_CheckExact(waiters))
        return done(PyObject_CallOneArg(st->wake_waiters, operation));
    Py_XINCREF(owner); Py_XINCREF(waiters);
    int failed = 0;
    if (owner != NULL) {
        put_rare(operation, OWNER, NULL);
        failed = wake(owner, st);
    }
    if (!failed && waiters != NULL) {
        put_rare(operation, WAITERS, NULL);
        failed = wake(waiters, st);
    }
    Py_XDECREF(owner); Py_XDECREF(waiters);
    return failed;
}

/* the hooks of operation.finish(operation) */
static int run_hooks(State *st, PyObject *operation) {
    if (IS(operation, CANCELLED) || OP(operation)->has_result) return 0;
    PyObject *result = CALL0(operation, on_complete);
    if (result != NULL) {
        set_result(operation, result);
        Py_DECREF(result);
    } else if (handle(st, st->_set_exception, operation)) return -1;
    if (IS(operation, EXPIRED)) {
        if (done(CALL0(operation, on_expiration)) && handle(st, st->_set_exception, operation))
            return -1;
    }
    return is_awaited(operation) ? wake_waiters(st, operation) : 0;
}

static PyObject *kind_of(State *st, PyObject *operation) {
    PyObject *kind = PyObject_GetAttr(operation, st->s__op_kind);
    if (kind != Py_None) return kind;
    Py_DECREF(kind);
    return PyType_GetName(Py_TYPE(operation));
}

/* the fields of an event */
static PyObject *event_fields(State *st, PyObject *notifier, PyObject *operation, PyObject *record,
    PyObject *now) {
    PyObject *keys = AT(record, Record, keys), *key = AT(record, Record, key),
        *started_at = AT(record, Record, started_at), *cause = AT(record, Record, cause),
        *result = OP(operation)->has_result ? OP(operation)->keys_or_result : NULL;
    double timeout = OP(operation)->timeout;
    if (isnan(timeout)) { /* `started_at` may be an int, as `loop.time()` */
        timeout = DEADLINE(operation) - PyFloat_AsDouble(started_at);
        if (timeout < 0.0) timeout = 0.0;
    }
    PyObject *fields = PyErr_Occurred() ? NULL : PyTuple_New(13);
    if (fields == NULL) return NULL;
    PyObject *values[] = {
        get(AT(notifier, Notifier, name)), kind_of(st, operation),
        PyTuple_CheckExact(keys) ? Py_NewRef(keys) : PyTuple_Pack(1, keys), Py_NewRef(started_at),
        Py_NewRef(now), isfinite(timeout) ? PyFloat_FromDouble(timeout) : Py_NewRef(Py_None),
        Py_NewRef(state_object(st, OP(operation)->state)), Py_NewRef(cause),
        Py_NewRef(key == st->NO_KEY ? Py_None : key), get(AT(record, Record, failed_tries)),
        PyBool_FromLong(cause == st->DEADLINE && IS(operation, COMPLETED)),
        is_a(result, (PyTypeObject *)st->Failure) ? PyObject_GetAttr(result, st->s_exception)
            : Py_NewRef(Py_None),
        PyLong_FromVoidPtr(operation)};
    int failed = 0;
    for (Py_ssize_t i = 0; i < 13; i++) {
        failed |= values[i] == NULL;
        PyTuple_SET_ITEM(fields, i, values[i]);
    }
    if (failed) Py_CLEAR(fields);
    return fields;
}

/* observers.Notifier.operation_ended(self, operation, record, now) */
static int tell_ended(State *st, PyObject *notifier, PyObject *operation, PyObject *record,
    PyObject *now) {
    PyObject *fields = event_fields(st, notifier, operation, record, now);
    PyObject *args = fields != NULL ? PyTuple_Pack(1, fields) : NULL;
    PyObject *event = args != NULL ? PyTuple_Type.tp_new((PyTypeObject *)st->Ended, args, NULL)
        : NULL;
    Py_XDECREF(fields); Py_XDECREF(args);
    if (event == NULL) return -1;
    PyObject *observers = Py_NewRef(AT(notifier, Notifier, _observers));
    int failed = 0;
    for (Py_ssize_t i = 0; !failed && i < PyTuple_GET_SIZE(observers); i++) {
        PyObject *observer = PyTuple_GET_ITEM(observers, i);
        if (done(CALL(observer, operation_ended, event)) == 0) continue;
        PyObject *error = PyErr_GetRaisedException(),
            *report = PyObject_GetAttr(notifier, st->s__failed);
        failed = report == NULL || done(PyObject_CallFunctionObjArgs(
            st->handle, error, report, st->s_operation_ended, observer, NULL));
        Py_DECREF(error); Py_XDECREF(report);
    }
    Py_DECREF(observers); Py_DECREF(event);
    return failed ? -1 : 0;
}

/* Notifies observers of the end, once. */
static int notify(State *st, PyObject *operation) {
    PyObject *home = OP(operation)->home, *record = GET_RARE(operation, RECORD);
    PyObject *notifier = is_a(home, st->Purgatory) ? AT(home, Home, _notifier) : NULL;
    if (record == NULL || notifier == NULL || notifier == Py_None) return 0;
    PyObject *args[] = {Py_NewRef(notifier), operation, Py_NewRef(record),
        read_clock(st, AT(home, Home, _time))};
    put_rare(operation, RECORD, NULL);
    int failed = args[3] == NULL || tell_ended(st, args[0], operation, args[2], args[3]);
    Py_DECREF(args[0]); Py_DECREF(args[2]); Py_XDECREF(args[3]);
    return failed ? -1 : 0;
}

/* operation.finish(operation) */
static int finish_steps(State *st, PyObject *operation) {
    int failed = run_hooks(st, operation);
    if (!is_observed(operation)) return failed;
    PyObject *error = failed ? PyErr_GetRaisedException() : NULL;
    failed = notify(st, operation);
    return error != NULL ? raise_again(error) : failed;
}

/* operation.DelayedOperation._op_finish(self, budget=0) */
static PyObject *op_finish(Twin *self, PyObject *const *a, Py_ssize_t Py_UNUSED(count)) {
    if (!is_made(self->st, a[0])) return PASS;
    return finish_steps(self->st, a[0]) ? NULL : Py_NewRef(Py_None);
}

/* the call of the hook in operation.try_once */
static int try_complete(State *st, PyObject *operation) {
    PyObject *result = CALL0(operation, try_complete);
    int holds = result == NULL ? -1 : PyObject_IsTrue(result);
    Py_XDECREF(result);
    if (holds == 0 || (holds > 0 && !IS(operation, PENDING))) return 0;
    if (holds > 0) {
        PyObject *error = PyObject_CallOneArg(st->not_completed, operation);
        if (error != NULL) PyErr_SetObject((PyObject *)Py_TYPE(error), error);
        Py_XDECREF(error);
    }
    return handle(st, st->try_failed, operation);
}

/* operation._record_try(operation, record, key, cause): UNCOUNTED for a run that was requested and no more;
   -1 is an exception */
#define UNCOUNTED 1
static int record_try(State *st, PyObject *operation, PyObject *key, PyObject *cause) {
    PyObject *record = Py_XNewRef(GET_RARE(operation, RECORD)), *is_asynchronous = NULL;
    int result = 0;
    if (!is_a(record, st->Record)) result = 0;
    else if (IS(operation, COMPLETED)) set_cause(st, operation, cause, key);
    else if (IS(operation, PENDING)
        && (is_asynchronous = CALL0(operation, _op_is_asynchronous)) == NULL) result = -1;
    else if (is_asynchronous == Py_True) {
        if (AT(record, Record, key) == st->NO_KEY) PUT(record, Record, key, key);
        result = UNCOUNTED;
    } else {
        if (!IS(operation, PENDING)) PUT(record, Record, key, key);
        result = ADD(record, Record, failed_tries, 1);
    }
    Py_XDECREF(record); Py_XDECREF(is_asynchronous);
    return result;
}

/* operation.try_once(operation, key, cause, is_last): 0, or UNCOUNTED; `operation` has the right
   type */
static int try_current(State *st, PyObject *operation, PyObject *key, PyObject *cause, int is_last) {
    PyObject *owner = GET_RARE(operation, OWNER), *left = NULL;
    if (owner != NULL) {
        Py_INCREF(owner);
        if ((left = CALL0(owner, cancelled)) != NULL) Py_DECREF(left);
        Py_DECREF(owner);
        if (left == NULL) return -1;
    }
    if (left != NULL && left != Py_False)
        return done(PyObject_CallFunctionObjArgs(st->try_once, operation, key, cause, NULL));
    int failed = try_complete(st, operation), recorded = 0;
    if (!failed) recorded = record_try(st, operation, key, cause);
    failed = failed || recorded < 0;
    if (!failed && is_last)
        failed = claim(st, operation, OP(operation)->home, EXPIRED, st->DEADLINE) < 0;
    if (IS(operation, PENDING)) return failed ? -1 : recorded;
    PyObject *error = failed ? PyErr_GetRaisedException() : NULL;
    failed = finish_steps(st, operation);
    return error != NULL ? raise_again(error) : failed ? -1 : recorded;
}
static int try_once(State *st, PyObject *dispatcher, PyObject *operation, PyObject *key,
    PyObject *cause, int is_last) {
    PyObject *interrupted = get(AT(dispatcher, Dispatcher, current));
    PUT(dispatcher, Dispatcher, current, operation);
    int tried = try_current(st, operation, key, cause, is_last);
    PUT(dispatcher, Dispatcher, current, interrupted);
    Py_DECREF(interrupted);
    return tried;
}

/* ---- the dispatcher */

static int has_work(State *st, PyObject *dispatcher) {
    PyObject *queue = get(AT(dispatcher, Dispatcher, queue));
    Py_ssize_t size = PyObject_Size(queue);
    Py_DECREF(queue);
    if (size < 0) PyErr_Clear();
    return size > 0;
}

/* The hook is over; the rest of the queue follows now, or, after an exception, later. */
static int leave_hook(State *st, PyObject *dispatcher, int failed) {
    PyObject *error = failed ? PyErr_GetRaisedException() : NULL;
    PUT(dispatcher, Dispatcher, current, Py_None);
    if (error != NULL) {
        done(CALL0(dispatcher, continue_later));
        return raise_again(error);
    }
    return has_work(st, dispatcher) ? done(CALL0(dispatcher, run_queue)) : 0;
}

/* dispatcher.Dispatcher.perform(self, operation._op_finish) */
static int finish(State *st, PyObject *dispatcher, PyObject *operation) {
    if (AT(dispatcher, Dispatcher, current) != Py_None) {
        PyObject *work = PyObject_GetAttr(operation, st->s__op_finish);
        int failed = work == NULL || done(CALL(dispatcher, perform, work));
        Py_XDECREF(work);
        return failed ? -1 : 0;
    }
    PUT(dispatcher, Dispatcher, current, operation);
    return leave_hook(st, dispatcher, finish_steps(st, operation));
}

/* The dispatcher of a purgatory; NULL if its `__init__` was called again. */
static PyObject *dispatcher_of(State *st, PyObject *home) {
    PyObject *dispatcher = is_a(home, st->Purgatory) ? AT(home, Home, _dispatcher) : NULL;
    return is_a(dispatcher, st->Dispatcher) ? dispatcher : NULL;
}
/* The same, if its loop runs in this thread; or NULL, perhaps with an exception. */
static PyObject *dispatcher_here(State *st, PyObject *home) {
    if (!is_a(home, st->Purgatory) || is_running(st, AT(home, Home, _loop)) != 1) return NULL;
    return dispatcher_of(st, home);
}

/* operation.DelayedOperation._timer_expired(self), operation.expire(operation) */
static PyObject *op_expired(Twin *self, PyObject *const *a, Py_ssize_t Py_UNUSED(count)) {
    State *st = self->st;
    PyObject *operation = a[0], *purgatory = is_made(st, operation) ? OP(operation)->home : NULL,
        *dispatcher = dispatcher_of(st, purgatory);
    if (dispatcher == NULL || !IS(operation, PENDING)
        || PyObject_IsTrue(AT(purgatory, Home, _inbox))
        || PyDict_GET_SIZE(AT(purgatory, Home, _checks))) return PASS;
    PyObject *keys = Py_NewRef(keys_watched(st, operation)), *result = NULL;
    Py_INCREF(dispatcher); Py_INCREF(purgatory);
    int failed = try_once(st, dispatcher, operation, st->NO_KEY, st->DEADLINE, 1) < 0;
    PyObject *error = failed ? PyErr_GetRaisedException() : NULL;
    if (has_work(st, dispatcher)) failed = done(CALL0(dispatcher, continue_later));
    if (error != NULL) failed = raise_again(error);
    if (!failed && IS(operation, COMPLETED)) {
        PyObject *all = PyObject_CallOneArg(st->keys_of, keys);
        failed = all == NULL || done(CALL(purgatory, _count_missed_trigger, operation, all));
        Py_XDECREF(all);
    }
    if (!failed) result = PyTuple_CheckExact(keys) ? PyObject_CallOneArg(st->steps_to_leave, keys)
        : PyLong_FromLong(1);
    Py_DECREF(dispatcher); Py_DECREF(keys); Py_DECREF(purgatory);
    return result;
}

/* operation.DelayedOperation.force_complete(self) */
static PyObject *op_force_complete(Twin *self, PyObject *const *a, Py_ssize_t Py_UNUSED(count)) {
    State *st = self->st;
    PyObject *operation = a[0];
    if (!is_made(st, operation)) return PASS;
    PyObject *home = home_of(operation), *dispatcher = Py_XNewRef(dispatcher_here(st, home));
    int won = dispatcher != NULL ? claim(st, operation, home, COMPLETED, st->FORCED)
        : PyErr_Occurred() ? -1 : PASSED;
    if (won == 1 && AT(dispatcher, Dispatcher, current) != operation
        && finish(st, dispatcher, operation)) won = -1;
    Py_DECREF(home); Py_XDECREF(dispatcher);
    return won == PASSED ? PASS : won < 0 ? NULL : PyBool_FromLong(won);
}

/* operation.cancel(operation, cause), of one without observers, who alone learn the cause */
static PyObject *cancel(Twin *self, PyObject *const *a, Py_ssize_t Py_UNUSED(count)) {
    State *st = self->st;
    if (!is_made(st, a[0]) || is_observed(a[0])) return PASS;
    PyObject *home = home_of(a[0]), *is_decided = CALL0(a[0], _op_is_decided);
    int won = is_decided == NULL ? -1 : is_decided != Py_False ? PASSED
        : claim(st, a[0], home, CANCELLED, Py_None); /* without observers */
    if (won == 1 && is_awaited(a[0]) && wake_waiters(st, a[0])) won = -1;
    Py_DECREF(home); Py_XDECREF(is_decided);
    return won == PASSED ? PASS : won < 0 ? NULL : PyBool_FromLong(won);
}

/* operation.DelayedOperation.__init__(self, timeout), of a new operation */
static PyObject *op_init(Twin *self, PyObject *const *a, Py_ssize_t count) {
    State *st = self->st;
    PyObject *operation = a[0], *timeout = count == 2 ? a[1] : Py_None;
    if (!is_kind_of(operation, st->Operation) || !IS(operation, NEW)) return PASS;
    double seconds = timeout == Py_None ? Py_NAN : number_of(timeout);
    if (timeout != Py_None && !(seconds > 0.0)) return PASS;
    OP(operation)->timeout = seconds;
    DEADLINE(operation) = Py_NAN;
    SET_STATE(OP(operation)->state, PENDING);
    (void)set_home(operation, Py_None);
    set_keys(operation, NULL);
    return Py_NewRef(Py_None);
}

/* ---- the purgatory */

/* Whether all keys differ because their hashes do; -1 is an exception. */
static int have_different_hashes(PyObject *keys, Py_ssize_t count) {
    Py_hash_t hashes[8];
    if (count > (Py_ssize_t)LENGTH(hashes)) return 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        hashes[i] = PyObject_Hash(PyTuple_GET_ITEM(keys, i));
        if (hashes[i] == -1) return -1;
        for (Py_ssize_t j = 0; j < i; j++)
            if (hashes[i] == hashes[j]) return 0;
    }
    return 1;
}

/* one key, or a tuple of different ones */
static PyObject *watched_keys(State *st, PyObject *keys) {
    Py_ssize_t count = PyTuple_CheckExact(keys) ? PyTuple_GET_SIZE(keys)
        : PyList_CheckExact(keys) ? PyList_GET_SIZE(keys) : 0;
    if (count == 1) {
        PyObject *key = PySequence_GetItem(keys, 0); /* another thread may change a list */
        if (key != NULL && !PyLong_CheckExact(key) && PyObject_Hash(key) == -1) Py_CLEAR(key);
        if (key == NULL || !PyTuple_CheckExact(key)) return key;
        PyObject *only = PyTuple_Pack(1, key);
        Py_DECREF(key);
        return only;
    }
    if (count > 1 && PyTuple_CheckExact(keys)) {
        int are_different = have_different_hashes(keys, count);
        if (are_different) return are_different < 0 ? NULL : Py_NewRef(keys);
    }
    return PyObject_CallOneArg(st->unique_keys, keys);
}

/* home.Home._join(self, operation, keys, when, now) */
static int join(State *st, PyObject *purgatory, PyObject *operation, PyObject *watched, double when,
    PyObject *now) {
    PyObject **each, *wheel = Py_NewRef(AT(purgatory, Home, _wheel)),
        *by_key = Py_NewRef(AT(purgatory, Home, _by_key));
    int failed = join_lists(st, by_key, operation, watched);
    Py_DECREF(by_key);
    if (!failed) {
        STEP(COUNTS(purgatory)->pending, 1);
        STEP(COUNTS(purgatory)->watched, array_of(&watched, &each));
        set_keys(operation, watched);
    }
    if (!failed && !isnan(when)) failed = add_to_wheel(st, wheel, operation, when, now);
    if (!failed && !IS(operation, PENDING)) failed = leave(st, purgatory, operation);
    Py_DECREF(wheel);
    return failed;
}

/* Whether operations of its class are told apart by identity: by the slots, or checked before. */
static int is_known(State *st, PyObject *operation) {
    PyTypeObject *type = Py_TYPE(operation), *base = st->OperationBase;
    if (type->tp_richcompare == base->tp_richcompare && type->tp_hash == base->tp_hash) return 1;
    PyObject *checked = PyObject_GetAttr((PyObject *)type, st->s__op_validated);
    if (checked == NULL) PyErr_Clear();
    else Py_DECREF(checked);
    return checked == (PyObject *)type;
}

/* Whether a purgatory can watch an operation without Python's help, if it is new. */
static int is_watchable(State *st, PyObject *purgatory, PyObject *operation) {
    PyObject *checks = AT(purgatory, Home, _checks);
    return IS(operation, PENDING)
        && GET_RARE(operation, WAITERS) == NULL && AT(purgatory, Home, _closed) == Py_False
        && PyDict_GET_SIZE(checks) == 0;
}

/* The rest of `try_complete_else_watch`, once the operation was tried; -1 is an exception. */
static int wait_until(State *st, PyObject *purgatory, PyObject *operation, PyObject *watched,
    double when, PyObject *now) {
    if (when <= PyFloat_AS_DOUBLE(now) || AT(purgatory, Home, _max_pending) != Py_None
        || AT(purgatory, Home, _closed) != Py_False) {
        PyObject *until = get_time(when);
        PyObject *answer = until == NULL ? NULL : CALL(purgatory, _may_wait, operation, until, now);
        int may_wait = answer == NULL ? -1 : PyObject_IsTrue(answer);
        Py_XDECREF(until); Py_XDECREF(answer);
        if (may_wait <= 0) return may_wait;
    }
    return join(st, purgatory, operation, watched, when, now);
}

/* a new record of an operation that is watched from now on; -1 is an exception */
static int observe(State *st, PyObject *operation, PyObject *watched, PyObject *now) {
    PyObject *record = st->Record->tp_alloc(st->Record, 0);
    if (record == NULL || rare_of(operation) == NULL) {
        Py_XDECREF(record);
        return -1;
    }
    AT(record, Record, keys) = Py_NewRef(watched);
    AT(record, Record, started_at) = Py_NewRef(now);
    AT(record, Record, cause) = Py_NewRef(st->FIRST_TRY);
    AT(record, Record, key) = Py_NewRef(st->NO_KEY);
    AT(record, Record, failed_tries) = PyLong_FromLong(0);
    put_rare(operation, RECORD, record);
    return 0;
}

/* Whether the notifier is None, or without observers of starts. */
static int is_quiet(State *st, PyObject *notifier) {
    if (notifier == Py_None) return 1;
    PyObject *starts = is_a(notifier, st->Notifier) ? AT(notifier, Notifier, _start_observers)
        : NULL;
    return starts != NULL && PyList_CheckExact(starts) && PyList_GET_SIZE(starts) == 0;
}

/* purgatory.Purgatory.try_complete_else_watch(self, operation, keys) */
static PyObject *purgatory_watch(Twin *self, PyObject *const *a, Py_ssize_t Py_UNUSED(count)) {
    State *st = self->st;
    PyObject *purgatory = a[0], *operation = a[1], *result = NULL, *watched = NULL, *now = NULL;
    /* The definition may have to read the keys again, and an iterator can be read only once. */
    if (!PyTuple_CheckExact(a[2]) && !PyList_CheckExact(a[2])) return PASS;
    if (!is_made(st, operation) || !is_known(st, operation)) return PASS;
    PyObject *dispatcher = dispatcher_here(st, purgatory);
    if (dispatcher == NULL) return PyErr_Occurred() ? NULL : PASS;
    if (!is_watchable(st, purgatory, operation)
        || !is_quiet(st, AT(purgatory, Home, _notifier))) return PASS;
    Py_INCREF(dispatcher);
    if ((watched = watched_keys(st, a[2])) == NULL) goto out;
    if ((now = read_clock(st, AT(purgatory, Home, _time))) == NULL) goto out;
    /* A key's own methods may have run a check, or watched the operation. */
    if (!is_float(now) || !is_watchable(st, purgatory, operation)) {
        result = PASS;
        goto out;
    }
    double timeout = OP(operation)->timeout; /* NaN: none, as in `when` */
    double when = isnan(timeout) ? DEADLINE(operation) : PyFloat_AS_DOUBLE(now) + timeout;
    if (!set_home(operation, purgatory)) { /* another thread was first */
        result = PASS;
        goto out;
    }
    if (AT(purgatory, Home, _notifier) != Py_None && observe(st, operation, watched, now)) {
        (void)set_home(operation, Py_None);
        goto out;
    }
    PyObject *interrupted = get(AT(dispatcher, Dispatcher, current));
    PUT(dispatcher, Dispatcher, current, operation);
    int failed = try_complete(st, operation)
        || record_try(st, operation, st->NO_KEY, st->FIRST_TRY) < 0;
    if (!failed && IS(operation, PENDING))
        failed = wait_until(st, purgatory, operation, watched, when, now);
    if (failed) {
        PyObject *error = PyErr_GetRaisedException();
        done(CALL(purgatory, _undo_watch, operation));
        PUT(dispatcher, Dispatcher, current, interrupted);
        raise_again(error);
    } else {
        PUT(dispatcher, Dispatcher, current, interrupted);
        if (!IS(operation, PENDING)) failed = finish(st, dispatcher, operation);
        else if (interrupted == Py_None && has_work(st, dispatcher))
            failed = done(CALL0(dispatcher, run_queue));
        if (!failed) result = PyBool_FromLong(!IS(operation, PENDING));
    }
    Py_DECREF(interrupted);
out:
    Py_XDECREF(watched); Py_XDECREF(now);
    Py_DECREF(dispatcher);
    return result;
}

/* home.Home._notify_check, of a check with one operation */
static int notify_check(State *st, PyObject *purgatory, PyObject *key, int completed) {
    PyObject *notifier = AT(purgatory, Home, _notifier);
    if (!is_a(notifier, st->Notifier)) return 0;
    PyObject *observers = AT(notifier, Notifier, _check_observers);
    if (observers != NULL && PyList_CheckExact(observers) && PyList_GET_SIZE(observers) == 0)
        return 0;
    return done(PyObject_CallMethod(purgatory, "_notify_check", "Oii", key, 1, completed));
}

/* purgatory.Purgatory.check_and_complete(self, key) */
static PyObject *purgatory_check(Twin *self, PyObject *const *a, Py_ssize_t Py_UNUSED(count)) {
    State *st = self->st;
    PyObject *purgatory = a[0], *key = a[1], *result = NULL;
    PyObject *dispatcher = dispatcher_here(st, purgatory);
    if (dispatcher == NULL) return PyErr_Occurred() ? NULL : PASS;
    PyObject *by_key = Py_NewRef(AT(purgatory, Home, _by_key));
    Py_INCREF(dispatcher);
    PyObject *operation = Py_XNewRef(PyDict_GetItemWithError(by_key, key));
    Py_DECREF(by_key);
    if (operation == NULL && PyErr_Occurred()) { /* reported by the definition */
        PyErr_Clear();
        result = PASS;
    } else if (AT(dispatcher, Dispatcher, current) != Py_None) {
        if (done(CALL(purgatory, _check_later, key)) == 0) result = PyLong_FromLong(0);
    } else if (operation == NULL) {
        result = PyLong_FromLong(0);
    } else if (!is_made(st, operation) || !IS(operation, PENDING)) {
        result = CALL(purgatory, _check_key, key);
    } else {
        long long before = PyLong_AsLongLong(AT(dispatcher, Dispatcher, completed));
        int tried = try_once(st, dispatcher, operation, key, st->KEY, 0);
        int completed = IS(operation, COMPLETED);
        int failed = tried < 0 || (tried != UNCOUNTED && notify_check(st, purgatory, key, completed));
        if (leave_hook(st, dispatcher, failed) == 0)
            result = PyLong_FromLongLong(completed - before
                + PyLong_AsLongLong(AT(dispatcher, Dispatcher, completed)));
    }
    Py_XDECREF(operation); Py_DECREF(dispatcher);
    return result;
}

/* key_check.KeyCheck._try_untried(self, operations, budget) */
static PyObject *check_try_untried(Twin *self, PyObject *const *a, Py_ssize_t Py_UNUSED(count)) {
    State *st = self->st;
    PyObject *check = a[0], *dispatcher = dispatcher_of(st, AT(check, KeyCheck, _home));
    if (!is_a(a[1], st->WatchList) || dispatcher == NULL) return PASS;
    PyObject *key = AT(check, KeyCheck, key), *queue = AT(dispatcher, Dispatcher, queue);
    List *list = (List *)a[1];
    long spent = 1, budget = PyLong_AsLong(a[2]);
    Py_ssize_t queued = PyObject_Size(queue);
    if (PyErr_Occurred()) return NULL;
    Py_INCREF(dispatcher); Py_INCREF(key); Py_INCREF(queue);
    int failed = 0;
    while (!failed && list->untried != NULL && spent <= budget && PyObject_Size(queue) <= queued) {
        PyObject *operation = Py_NewRef(owner(list, list->untried));
        list->untried = list->untried->after;
        spent++;
        if (IS(operation, PENDING)) {
            PyObject *keys = Py_NewRef(keys_watched(st, operation));
            int tried = try_once(st, dispatcher, operation, key, st->KEY, 0);
            failed = tried < 0 || (!tried && ADD(check, KeyCheck, _tries, 1));
            if (!failed && !IS(operation, PENDING) && PyTuple_CheckExact(keys)) {
                PyObject *steps = PyObject_CallOneArg(st->steps_to_leave, keys);
                if (steps != NULL) spent += PyLong_AsLong(steps) - 1;
                failed = done(steps);
            }
            if (!failed && IS(operation, COMPLETED))
                failed = ADD(check, KeyCheck, _completed, 1)
                    || ADD(dispatcher, Dispatcher, completed, 1);
            Py_DECREF(keys);
        }
        Py_DECREF(operation);
    }
    Py_DECREF(dispatcher); Py_DECREF(key); Py_DECREF(queue);
    return failed ? NULL : PyLong_FromLong(spent);
}

/* ---- the module */

static const struct { const char *name; size_t type; } classes[] = {
#define CLASS_ROW(name, where) {where, offsetof(State, name)},
    CLASSES(CLASS_ROW)
};
static const struct { size_t type; const char *name; size_t at; } fields[] = {
#define FIELD_ROW(cls, field) {offsetof(State, cls), #field, offsetof(State, cls##_##field)},
    FIELDS(FIELD_ROW)
};
static const struct { const char *name; size_t at; } constants[] = {
#define CONSTANT_ROW(name) {#name, offsetof(State, name)},
    CONSTANTS(CONSTANT_ROW)
};
static const struct {
    const char *name; Function function; Py_ssize_t least, most; size_t at;
} twins[] = {
#define TWIN_ROW(function, least, most, where) \
    {where, function, least, most, offsetof(State, function)},
    TWINS(TWIN_ROW)
};
static const struct {
    const char *name; size_t type, parent; PyType_Spec *spec; const char *slots;
} bases[] = {
    {"wheel.TimerEntry", offsetof(State, EntryBase), 0, &entry_spec,
    "_timer_bucket _timer_deadline"},
    {"wheel.EntryList", offsetof(State, ListBase), 0, &list_spec, "_entries"},
    {"watch_lists.WatchList", offsetof(State, WatchListBase), 0, &watch_list_spec,
    "first last links untried"},
    {"home.OperationSlots", offsetof(State, OperationBase), offsetof(State, EntryBase),
    &op_spec,
    "_op_home _op_keys _op_owner _op_record _op_result _op_state _op_timeout _op_waiters"},
    {"home.Home", offsetof(State, HomeBase), 0, &home_spec,
    "_completed _expired _cancelled _pending _watched"},
};
#define SLOT(at) ((PyObject **)((char *)st + (at)))

/* base(name): the base in C of a class, or None */
static PyObject *module_base(PyObject *module, PyObject *name) {
    State *st = PyModule_GetState(module);
    for (size_t i = 0; PyUnicode_Check(name) && i < LENGTH(bases); i++)
        if (PyUnicode_CompareWithASCIIString(name, bases[i].name) == 0)
            return Py_NewRef(*SLOT(bases[i].type));
    Py_RETURN_NONE;
}

static void pass_in(State *st, size_t at, PyObject *value) {
    st->missing -= *SLOT(at) == NULL;
    Py_XSETREF(*SLOT(at), Py_NewRef(value));
}

/* fields(cls, name): records the offsets of the slots of a class. If it lacks a slot, the twins
   pass. */
static PyObject *module_fields(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    State *st = PyModule_GetState(module);
    if (count != 2 || !PyType_Check(args[0]) || !PyUnicode_Check(args[1]))
        return PyErr_Format(PyExc_TypeError, "expected a class and its name");
    for (size_t i = 0; i < LENGTH(classes); i++) {
        if (PyUnicode_CompareWithASCIIString(args[1], classes[i].name) != 0) continue;
        if (classes[i].type == offsetof(State, Operation)
            && !PyType_IsSubtype((PyTypeObject *)args[0], st->OperationBase)) continue;
        for (size_t j = 0; j < LENGTH(fields); j++) {
            if (fields[j].type != classes[i].type) continue;
            PyObject *slot = PyObject_GetAttrString(args[0], fields[j].name);
            if (slot == NULL) PyErr_Clear();
            PyMemberDef *member = slot != NULL && Py_IS_TYPE(slot, &PyMemberDescr_Type)
                && PyType_IsSubtype((PyTypeObject *)args[0], PyDescr_TYPE(slot))
                ? ((PyMemberDescrObject *)slot)->d_member : NULL;
            int is_slot = member != NULL && member->type == T_OBJECT_EX;
            if (is_slot) *(Py_ssize_t *)((char *)st + fields[j].at) = member->offset;
            Py_XDECREF(slot);
            if (!is_slot) Py_RETURN_NONE;
        }
        pass_in(st, classes[i].type, args[0]);
    }
    Py_RETURN_NONE;
}

/* missing(): how many names Python has not passed in, so that twins pass; 0, unless this was built
   from other sources */
static PyObject *module_missing(PyObject *module, PyObject *Py_UNUSED(none)) {
    return PyLong_FromSsize_t(((State *)PyModule_GetState(module))->missing);
}

/* constants(values): takes a dictionary of objects that twins compare with or call */
static PyObject *module_constants(PyObject *module, PyObject *values) {
    State *st = PyModule_GetState(module);
    for (size_t i = 0; PyDict_Check(values) && i < LENGTH(constants); i++) {
        PyObject *name = PyUnicode_FromString(constants[i].name);
        PyObject *value = name ? PyDict_GetItemWithError(values, name) : NULL;
        Py_XDECREF(name);
        if (value != NULL) pass_in(st, constants[i].at, value);
        else if (PyErr_Occurred()) return NULL;
    }
    Py_RETURN_NONE;
}

/* twin(function, name): the replacement of `function` */
static PyObject *module_twin(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    State *st = PyModule_GetState(module);
    if (count != 2 || !PyFunction_Check(args[0]) || !PyUnicode_Check(args[1]))
        return PyErr_Format(PyExc_TypeError, "expected a function and its name");
    for (size_t i = 0; i < LENGTH(twins); i++) {
        if (PyUnicode_CompareWithASCIIString(args[1], twins[i].name) != 0) continue;
        Twin *twin = PyObject_GC_New(Twin, st->Twin_Type);
        if (twin == NULL) return NULL;
        twin->vectorcall = twin_call;
        twin->function = twins[i].function;
        twin->least = twins[i].least;
        twin->most = twins[i].most;
        twin->passed = 0;
        twin->python = Py_NewRef(args[0]);
        twin->module = Py_NewRef(module);
        twin->st = st;
        PyObject_GC_Track(twin);
#if PY_VERSION_HEX >= 0x030E0000
        PyUnstable_Object_EnableDeferredRefcount((PyObject *)twin); /* threads share it */
#endif
        pass_in(st, twins[i].at, (PyObject *)twin);
        return (PyObject *)twin;
    }
    return Py_NewRef(args[0]); /* built from older sources */
}

#ifdef READS_LOOP
/* loop.running_loop() */
static PyObject *module_running_loop(PyObject *module, PyObject *Py_UNUSED(none)) {
    return running_loop(PyModule_GetState(module));
}
#endif

static PyMethodDef module_methods[] = {
#ifdef READS_LOOP
    {"running_loop", module_running_loop, METH_NOARGS, NULL},
#endif
    {"fields", (PyCFunction)(void (*)(void))module_fields, METH_FASTCALL, NULL},
    {"base", module_base, METH_O, NULL},
    {"constants", module_constants, METH_O, NULL},
    {"missing", module_missing, METH_NOARGS, NULL},
    {"twin", (PyCFunction)(void (*)(void))module_twin, METH_FASTCALL, NULL}, {0}};

static int module_exec(PyObject *module) {
    State *st = PyModule_GetState(module);
#define INTERN(name) if ((st->s_##name = PyUnicode_InternFromString(#name)) == NULL) return -1;
    NAMES(INTERN)
#ifdef READS_LOOP
    if (process == 0) pthread_atfork(NULL, NULL, note_process);
    note_process();
#endif
    st->Twin_Type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &twin_spec, NULL);
    if (st->Twin_Type == NULL) return -1;
    int failed = 0;
    st->missing = LENGTH(classes) + LENGTH(constants) + LENGTH(twins);
    for (size_t i = 0; i < LENGTH(bases) && !failed; i++) {
        PyObject *parent = bases[i].parent ? *SLOT(bases[i].parent) : NULL;
        PyObject *base = *SLOT(bases[i].type) =
            PyType_FromModuleAndSpec(module, bases[i].spec, parent);
        PyObject *names = base ? PyUnicode_FromString(bases[i].slots) : NULL;
        PyObject *slots = names ? PyUnicode_Split(names, NULL, -1) : NULL;
        failed = slots == NULL || PyObject_SetAttrString(base, "__slots__", slots);
        Py_XDECREF(names); Py_XDECREF(slots);
    }
    PyObject *source = PyLong_FromUnsignedLong(SOURCE);
    if (failed || source == NULL || PyModule_AddObjectRef(module, "source", source)) failed = 1;
    Py_XDECREF(source);
    return failed ? -1 : 0;
}
static int module_traverse(PyObject *module, visitproc visit, void *arg) {
    State *st = PyModule_GetState(module);
#define VISIT(name, ...) Py_VISIT(st->name);
    CLASSES(VISIT) CONSTANTS(VISIT) TWINS(VISIT) TYPES(VISIT)
    return 0;
}
static int module_clear(PyObject *module) {
    State *st = PyModule_GetState(module);
    st->missing++;
#define CLEAR(name, ...) Py_CLEAR(st->name);
#define CLEAR_NAME(name) Py_CLEAR(st->s_##name);
    CLASSES(CLEAR) CONSTANTS(CLEAR) TWINS(CLEAR) TYPES(CLEAR) NAMES(CLEAR_NAME)
    return 0;
}
static void module_free(void *module) { module_clear(module); }

static PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, module_exec},
#ifdef Py_mod_multiple_interpreters
    {Py_mod_multiple_interpreters, Py_MOD_PER_INTERPRETER_GIL_SUPPORTED},
#endif
#ifdef Py_mod_gil
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0}};
static struct PyModuleDef module_def = {
    PyModuleDef_HEAD_INIT, "purgatory._core._kernel", "See kernel.py.", sizeof(State),
        module_methods, module_slots,
    module_traverse, module_clear, module_free};
PyMODINIT_FUNC PyInit__kernel(void) { return PyModuleDef_Init(&module_def); }
