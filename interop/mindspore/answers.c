/* What MindSpore insists on when it is loaded. */

/* ge::StatusFactory::Instance(): static constructors put texts into the std::map that the object begins with.
 * This is an empty one as the C++ library lays it out: the order, then the head of a tree whose ends are itself. */
static void *status_factory[16] = {[3] = &status_factory[1], [4] = &status_factory[1]};

void *_ZN2ge13StatusFactory8InstanceEv(void) { return status_factory; }
