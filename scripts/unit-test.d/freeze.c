/* Stops one thread of a process by ptrace until the thread is killed. This simulates a worker that makes no progress.
 *
 * usage: freeze PROCESS THREAD-NAME
 */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

static long find(const char *process, const char *name)
{
	char path[300];
	snprintf(path, sizeof path, "/proc/%s/task", process);
	DIR *tasks = opendir(path);
	long found = 0;
	for (struct dirent *task; tasks && !found && (task = readdir(tasks));) {
		char comm[32] = "";
		if (task->d_name[0] == '.')
			continue;
		snprintf(path, sizeof path, "/proc/%.20s/task/%.20s/comm", process, task->d_name);
		FILE *file = fopen(path, "r");
		if (file && fgets(comm, sizeof comm, file)) {
			comm[strcspn(comm, "\n")] = '\0';
			if (!strcmp(comm, name))
				found = atol(task->d_name);
		}
		if (file)
			fclose(file);
	}
	if (tasks)
		closedir(tasks);
	return found;
}

int main(int argc, char **argv)
{
	if (argc != 3) {
		fprintf(stderr, "usage: freeze PROCESS THREAD-NAME\n");
		return 2;
	}
	long thread = find(argv[1], argv[2]);
	if (!thread) {
		fprintf(stderr, "process %s has no thread %s\n", argv[1], argv[2]);
		return 1;
	}
	if (ptrace(PTRACE_SEIZE, thread, 0, 0) || ptrace(PTRACE_INTERRUPT, thread, 0, 0)) {
		perror("ptrace");
		return 1;
	}
	int status;
	if (waitpid(thread, &status, __WALL) < 0 || !WIFSTOPPED(status)) {
		perror("the thread does not stop");
		return 1;
	}
	printf("frozen: %s\n", argv[2]);
	fflush(stdout);
	/* Waits until the thread is killed. */
	while (waitpid(thread, &status, __WALL) >= 0 && !WIFEXITED(status) && !WIFSIGNALED(status))
		;
	return 0;
}
