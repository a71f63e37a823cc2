// program SCRIPT IMAGE: map the image at BASE and call kernels on it as the script says, entries of
// four 64-bit numbers: which kernel, where its arguments lie, lo, hi.
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>

extern void (*const kernels[])(void *, long, long);

int main(int argc, char **argv) {
    struct stat about;
    int image = argc == 3 ? open(argv[2], O_RDWR) : -1;
    FILE *script = argc == 3 ? fopen(argv[1], "rb") : NULL;
    if (image < 0 || !script || fstat(image, &about)) return 2;
    void *at = mmap((void *)BASE, about.st_size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, image, 0);
    if (at != (void *)BASE) return 3;
    long entry[4];
    while (fread(entry, sizeof entry, 1, script) == 1)
        kernels[entry[0]]((void *)entry[1], entry[2], entry[3]);
    return 0;
}
