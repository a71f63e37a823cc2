/* Runs every kernel over an image of memory, in place. The image (little-endian words of 8 bytes) begins with the number of
   kernels and the one that is being run (so that a crash can be told), then for each: tiles, and the offsets of its slots. */
#include <fcntl.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/stat.h>

enum { SLOTS = 4 };
extern void (*const kernels[])(void *slots, int64_t lo, int64_t hi);

int main(int n_args, char **args) {
    struct stat file;
    int fd = open(args[n_args - 1], O_RDWR);
    if (fd < 0 || fstat(fd, &file)) return 2;
    char *image = mmap(0, file.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (image == MAP_FAILED) return 2;
    uint64_t *head = (uint64_t *)image, *record = head + 2;
    for (; head[1] < head[0]; head[1]++, record += 1 + SLOTS) {
        void *slots[SLOTS];
        for (int i = 0; i < SLOTS; i++) slots[i] = image + record[1 + i];
        kernels[head[1]](slots, 0, record[0]);
    }
    return 0;
}
