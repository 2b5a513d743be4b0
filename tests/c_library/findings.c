/*
 * Runs a sample, whose `main` is compiled under another name, and then says what the simulator found wrong. The
 * controls are the simulator's alone, so the samples themselves cannot ask.
 */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

int sample_main(void);
int acl_sim_findings_json(char *text, size_t capacity);

int main(void)
{
    static char text[1 << 16];
    int status = sample_main();
    int answer = acl_sim_findings_json(text, sizeof(text));
    printf("status %d, answer %d, findings %s\n", status, answer, text);
    return EXIT_SUCCESS;
}
