/* Mounts a directory read-only, as from a slow network file system: slow_fs --source=DIR --server=FILE [options] TARGET
 *
 * Every metadata call waits for a server with a limited number of calls a second, every read for its bandwidth. All
 * mounts that name the same FILE share the server: FILE holds the time until which it is busy, by the clock of the
 * machine. A call advances this time by the duration of its service, and sleeps until then. The mount ends with the
 * process that started it, which is testbed/cluster/slow_fs.py.
 */
#define FUSE_USE_VERSION 312
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fuse_lowlevel.h>
#include <pthread.h>
#include <search.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* What FILE holds; slow_fs.py reads it. Times are nanoseconds of CLOCK_MONOTONIC. */
struct server {
    _Atomic int64_t calls_done_at, reads_done_at; /* when the last one in the queue has been served */
    _Atomic int64_t calls, bytes;                 /* served so far */
};

struct options {
    char *source, *server, *record;
    unsigned long calls_per_second, bytes_per_second;
    /* seconds for which the kernel answers itself: attributes of files and of directories, at first and at most, names
     * of directories, and names of files and missing ones */
    double file_attributes, directory_attributes, most_attributes, directory_names, names;
};

/* A file or directory that the kernel knows. Its address is its number; none is forgotten before the end. */
struct node {
    dev_t device;
    ino_t inode;
    int64_t asked_at;         /* when the kernel got its attributes for the last time */
    double attribute_seconds; /* for how long it keeps them */
    char path[]; /* relative to the source */
};

static struct options options = {.calls_per_second = 20000, .bytes_per_second = 7500000000};
static struct server *server;
static FILE *record;
static int source;
static struct node *root;
static void *nodes; /* all, as tsearch(3) keeps them */
static pthread_mutex_t nodes_lock = PTHREAD_MUTEX_INITIALIZER;

static int64_t now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000LL + time.tv_nsec;
}

/* Sleep until a queue has served all before this call, and then this call. */
static void wait_in_queue(_Atomic int64_t *done_at, int64_t service)
{
    int64_t arrival = now(), before = atomic_load(done_at), done;
    do
        done = (before > arrival ? before : arrival) + service;
    while (!atomic_compare_exchange_weak(done_at, &before, done));
    struct timespec until = {done / 1000000000, done % 1000000000};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) == EINTR)
        continue;
}

/* A line of the record: when the call came and was answered, its kind, for a read its place and bytes, the file. */
static void write_record(int64_t arrival, char kind, long long offset, size_t bytes, const char *path)
{
    if (record)
        fprintf(record, "%lld\t%lld\t%c\t%lld\t%zu\t%s\n", (long long)arrival, (long long)now(), kind, offset, bytes,
                path);
}

/* Wait for the server as a metadata call of a kind: a letter for the record. */
static void call_server(char kind, const char *path)
{
    int64_t arrival = now();
    atomic_fetch_add(&server->calls, 1);
    wait_in_queue(&server->calls_done_at, 1000000000 / options.calls_per_second);
    write_record(arrival, kind, 0, 0, path);
}

static struct node *node_of(fuse_ino_t number)
{
    return number == FUSE_ROOT_ID ? root : (struct node *)number;
}

static int compare_nodes(const void *left, const void *right)
{
    const struct node *a = left, *b = right;
    int order = (a->device > b->device) - (a->device < b->device);
    return order ? order : (a->inode > b->inode) - (a->inode < b->inode);
}

/* The known node of a file, or a new one. The same file has to have the same number each time. */
static struct node *find_node(const struct stat *attributes, const char *path)
{
    struct node *new = malloc(sizeof *new + strlen(path) + 1);
    if (!new)
        return NULL;
    new->device = attributes->st_dev;
    new->inode = attributes->st_ino;
    new->asked_at = now();
    new->attribute_seconds = S_ISDIR(attributes->st_mode) ? options.directory_attributes : options.file_attributes;
    strcpy(new->path, path);
    pthread_mutex_lock(&nodes_lock);
    struct node **found = tsearch(new, &nodes, compare_nodes);
    pthread_mutex_unlock(&nodes_lock);
    if (!found || *found != new)
        free(new);
    return found ? *found : NULL;
}

/* For how long the kernel keeps attributes that it asks for now. Each time they had expired and have not changed, and
 * here none does, twice as long as before: as Linux's NFS client (fs/nfs/inode.c, nfs_update_inode). */
static double attribute_seconds(struct node *node)
{
    pthread_mutex_lock(&nodes_lock);
    double seconds = node->attribute_seconds, most = options.most_attributes;
    if (now() - node->asked_at >= seconds * 1e9 && seconds < most)
        seconds = 2 * seconds < most ? 2 * seconds : most;
    node->attribute_seconds = seconds;
    node->asked_at = now();
    pthread_mutex_unlock(&nodes_lock);
    return seconds;
}

static void start(void *data, struct fuse_conn_info *kernel)
{
    (void)data;
    if (options.names > 0) /* the kernel keeps targets of links, too */
        kernel->want |= kernel->capable & FUSE_CAP_CACHE_SYMLINKS;
}

static void look_up(fuse_req_t request, fuse_ino_t parent, const char *name)
{
    const char *directory = node_of(parent)->path;
    char path[strlen(directory) + strlen(name) + 2];
    sprintf(path, "%s/%s", directory, name);
    struct fuse_entry_param entry = {.entry_timeout = options.names};
    call_server('L', path);
    if (fstatat(source, path, &entry.attr, AT_SYMLINK_NOFOLLOW) == 0) {
        struct node *node = find_node(&entry.attr, path);
        entry.ino = (fuse_ino_t)node;
        entry.attr_timeout = node ? attribute_seconds(node) : 0;
        if (S_ISDIR(entry.attr.st_mode))
            entry.entry_timeout = options.directory_names;
    } else if (errno != ENOENT) {
        fuse_reply_err(request, errno);
        return;
    }
    fuse_reply_entry(request, &entry); /* number 0: the name is missing, which the kernel remembers, too */
}

static void get_attributes(fuse_req_t request, fuse_ino_t number, struct fuse_file_info *file)
{
    (void)file;
    struct stat attributes;
    call_server('A', node_of(number)->path);
    if (fstatat(source, node_of(number)->path, &attributes, AT_SYMLINK_NOFOLLOW))
        fuse_reply_err(request, errno);
    else
        fuse_reply_attr(request, &attributes, attribute_seconds(node_of(number)));
}

static void read_link(fuse_req_t request, fuse_ino_t number)
{
    char target[4096];
    call_server('K', node_of(number)->path);
    ssize_t length = readlinkat(source, node_of(number)->path, target, sizeof target - 1);
    if (length < 0) {
        fuse_reply_err(request, errno);
        return;
    }
    target[length] = '\0';
    fuse_reply_readlink(request, target);
}

static void open_file(fuse_req_t request, fuse_ino_t number, struct fuse_file_info *file)
{
    call_server('O', node_of(number)->path);
    int descriptor = openat(source, node_of(number)->path, O_RDONLY | O_CLOEXEC);
    if (descriptor < 0) {
        fuse_reply_err(request, errno);
        return;
    }
    file->fh = descriptor;
    file->keep_cache = 1; /* read-only: what a node has read stays in its memory */
    fuse_reply_open(request, file);
}

static void read_file(fuse_req_t request, fuse_ino_t number, size_t size, off_t offset, struct fuse_file_info *file)
{
    int64_t arrival = now();
    char *bytes = malloc(size);
    ssize_t length = bytes ? pread(file->fh, bytes, size, offset) : -1;
    if (length < 0) {
        fuse_reply_err(request, errno);
    } else {
        atomic_fetch_add(&server->bytes, length);
        wait_in_queue(&server->reads_done_at, (int64_t)(length * 1e9 / options.bytes_per_second));
        write_record(arrival, 'R', offset, length, node_of(number)->path);
        fuse_reply_buf(request, bytes, length);
    }
    free(bytes);
}

static void close_file(fuse_req_t request, fuse_ino_t number, struct fuse_file_info *file)
{
    (void)number;
    close(file->fh); /* file systems close without a wait */
    fuse_reply_err(request, 0);
}

static void open_directory(fuse_req_t request, fuse_ino_t number, struct fuse_file_info *file)
{
    int descriptor = openat(source, node_of(number)->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *directory = descriptor < 0 ? NULL : fdopendir(descriptor);
    if (!directory) {
        fuse_reply_err(request, errno);
        return;
    }
    file->fh = (uint64_t)directory;
    /* the kernel keeps the list with the directory's attributes */
    file->cache_readdir = file->keep_cache = options.directory_attributes > 0;
    fuse_reply_open(request, file); /* its first part brings the call to the server */
}

static void read_directory(fuse_req_t request, fuse_ino_t number, size_t size, off_t offset,
                           struct fuse_file_info *file)
{
    DIR *directory = (DIR *)file->fh;
    char entries[size];
    size_t length = 0, added;
    seekdir(directory, offset);
    for (struct dirent *each; (each = readdir(directory)); length += added) {
        struct stat attributes = {.st_ino = each->d_ino, .st_mode = each->d_type << 12};
        added = fuse_add_direntry(request, entries + length, size - length, each->d_name, &attributes, each->d_off);
        if (added > size - length)
            break;
    }
    if (length) /* the kernel asks again after the last entry; file systems mark the last one instead */
        call_server('D', node_of(number)->path);
    fuse_reply_buf(request, entries, length);
}

static void close_directory(fuse_req_t request, fuse_ino_t number, struct fuse_file_info *file)
{
    (void)number;
    closedir((DIR *)file->fh);
    fuse_reply_err(request, 0);
}

static const struct fuse_lowlevel_ops operations = {
    .init = start, .lookup = look_up, .getattr = get_attributes, .readlink = read_link, .open = open_file, .read = read_file,
    .release = close_file, .opendir = open_directory, .readdir = read_directory, .releasedir = close_directory,
};

#define OPTION(text, member) {"--" text, offsetof(struct options, member), 0}
static const struct fuse_opt option_table[] = {
    OPTION("source=%s", source), OPTION("server=%s", server), OPTION("record=%s", record),
    OPTION("calls-per-second=%lu", calls_per_second), OPTION("bytes-per-second=%lu", bytes_per_second),
    OPTION("file-attributes=%lf", file_attributes), OPTION("directory-attributes=%lf", directory_attributes),
    OPTION("most-attributes=%lf", most_attributes), OPTION("directory-names=%lf", directory_names), OPTION("names=%lf", names), FUSE_OPT_END,
};

/* Open what the options name. Return 0, or print what is missing and return -1. */
static int open_files(void)
{
    struct stat attributes;
    int descriptor = options.server ? open(options.server, O_RDWR | O_CLOEXEC) : -1;
    /* before the mount, which may cover the source */
    source = options.source ? open(options.source, O_PATH | O_DIRECTORY | O_CLOEXEC) : -1;
    if (descriptor < 0 || source < 0 || fstat(source, &attributes)) {
        fprintf(stderr, "slow_fs: cannot open: --source or --server: %s.\n", strerror(errno));
        return -1;
    }
    server = mmap(NULL, sizeof *server, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    root = find_node(&attributes, ".");
    record = options.record ? fopen(options.record, "w") : NULL;
    return server == MAP_FAILED || (options.record && !record) ? -1 : 0;
}

int main(int count, char **words)
{
    struct fuse_args arguments = FUSE_ARGS_INIT(count, words);
    struct fuse_cmdline_opts places;
    if (fuse_opt_parse(&arguments, &options, option_table, NULL) || fuse_parse_cmdline(&arguments, &places) ||
        open_files())
        return 2;
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    prctl(PR_SET_TIMERSLACK, 1); /* threads inherit it; by default sleeps end 50 us late, as long as a call */
    fuse_opt_add_arg(&arguments, "-oro,fsname=slow_fs,subtype=slow_fs");
    struct fuse_session *session = fuse_session_new(&arguments, &operations, sizeof operations, NULL);
    if (!session || fuse_set_signal_handlers(session) || fuse_session_mount(session, places.mountpoint))
        return 1;
    struct fuse_loop_config *loop = fuse_loop_cfg_create(); /* as many threads as calls may wait at the same time */
    fuse_loop_cfg_set_max_threads(loop, 128);
    fuse_loop_cfg_set_idle_threads(loop, 128);
    int status = fuse_session_loop_mt(session, loop);
    fuse_session_unmount(session);
    if (record)
        fclose(record);
    return status < 0;
}
