/* The real cuDNN in a process of its own (tracer/null_gpu/cudnn_answers.py), which plans for a card that is only
   described: a graph of operations goes there as it was told to our descriptors. NULL_GPU_CUDNN has the command, a line
   for each argument; without it, and where the process ends or says nothing for a minute, nothing is known. */
#define _GNU_SOURCE
#include "dnn.h"
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define PATIENCE_MS 60000
#define MAX_ARGUMENTS 64
extern char **environ;

typedef struct {
  pid_t owner; /* a forked child has its parent's line, which is not its own */
  int socket;  /* -1: it cannot be asked */
  FILE *answers;
} Line;
static Line lines[MAX_DEVICES];
static long version; /* of the one that has answered; 0 before */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* ---- the process ---- */
static char **without_preloaded(void) {
  size_t count = 0, kept = 0;
  while (environ[count]) count++;
  char **variables = calloc(count + 2, sizeof *variables);
  for (size_t i = 0; variables && i < count; i++)
    if (strncmp(environ[i], "LD_PRELOAD=", 11)) variables[kept++] = environ[i];
  if (variables) variables[kept++] = "NULL_GPU_ABSENT=1";
  return variables;
}
static bool spawned(char *command, int socket) {
  char *arguments[MAX_ARGUMENTS + 1] = {NULL}, *rest = NULL, **variables = without_preloaded();
  int count = 0;
  for (char *part = strtok_r(command, "\n", &rest); part && count < MAX_ARGUMENTS; part = strtok_r(NULL, "\n", &rest))
    arguments[count++] = part;
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, socket, 0);
  posix_spawn_file_actions_adddup2(&actions, socket, 1);
  posix_spawn_file_actions_addopen(&actions, 2, "/dev/null", O_WRONLY, 0);
  pid_t child;
  bool is_there = count && variables && !posix_spawn(&child, arguments[0], &actions, NULL, arguments, variables);
  posix_spawn_file_actions_destroy(&actions);
  free(variables);
  return is_there;
}
static void hang_up(Line *line) {
  if (line->answers) fclose(line->answers);
  else if (line->socket >= 0) close(line->socket);
  line->socket = -1, line->answers = NULL;
}
/* A line there, and one back, which the caller frees; NULL if there is none, and then for good. */
static char *said_to(Line *line, const char *question) {
  char *answer = NULL;
  size_t size = 0, length = strlen(question);
  for (size_t sent = 0; line->socket >= 0 && sent < length;) {
    ssize_t more = send(line->socket, question + sent, length - sent, MSG_NOSIGNAL);
    if (more <= 0) hang_up(line);
    else sent += (size_t)more;
  }
  struct pollfd waiting = {.fd = line->socket, .events = POLLIN};
  if (line->socket >= 0 && poll(&waiting, 1, PATIENCE_MS) > 0 && getline(&answer, &size, line->answers) > 0) return answer;
  free(answer);
  if (line->socket >= 0) log_line(1, "cuDNN does not answer: workspaces are not known");
  return hang_up(line), NULL;
}
static void open_line(Line *line, int device) {
  const char *command = getenv("NULL_GPU_CUDNN");
  int ends[2];
  char *properties = NULL;
  *line = (Line){.owner = getpid(), .socket = -1};
  if (!command || !*command || getenv("NULL_GPU_CUDNN_WORKSPACE")) return;
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends)) return;
  char *copy = strdup(command);
  line->socket = ends[0];
  line->answers = fdopen(ends[0], "r");
  bool is_there = copy && line->answers && spawned(copy, ends[1]);
  close(ends[1]);
  free(copy);
  if (!is_there || asprintf(&properties, "%s\n", card_of(device)->for_cudnn) < 0) return hang_up(line);
  char *answer = said_to(line, properties);
  if (answer && atol(answer) <= 0) hang_up(line);
  else if (answer) version = atol(answer);
  free(answer);
  free(properties);
}
static char *asked(int device, const char *question) {
  Line *line = &lines[device >= 0 && device < MAX_DEVICES ? device : 0];
  if (line->owner != getpid()) open_line(line, device);
  return said_to(line, question);
}

/* Such as 92600; 0 if nobody was asked, or nobody could be. */
EXPORT long null_gpu_cudnn_version(void) { return version; }

/* ---- a graph as text: its descriptors, each after those that it refers to ---- */
typedef struct {
  const Descriptor **written;
  int count;
  FILE *out;
} Writer;
static int number_of(const Writer *writer, const Descriptor *descriptor) {
  int number = 0;
  while (number < writer->count && writer->written[number] != descriptor) number++;
  return number;
}
static void write_descriptor(Writer *writer, const Descriptor *descriptor) {
  if (number_of(writer, descriptor) < writer->count) return;
  for (const Attribute *attribute = descriptor->attributes; attribute; attribute = attribute->next)
    for (int64_t i = 0; attribute->type == CUDNN_TYPE_BACKEND_DESCRIPTOR && i < attribute->count; i++)
      if (((Descriptor **)attribute->values)[i]) write_descriptor(writer, ((Descriptor **)attribute->values)[i]);
  const Descriptor **more = realloc(writer->written, (size_t)(writer->count + 1) * sizeof *more);
  if (!more) return;
  fprintf(writer->out, "%s[%d", writer->count ? "," : "", descriptor->type);
  for (const Attribute *attribute = descriptor->attributes; attribute; attribute = attribute->next) {
    if (attribute->name < 0 || attribute->type == CUDNN_TYPE_HANDLE || attribute->type == CUDNN_TYPE_VOID_PTR) continue;
    fprintf(writer->out, ",[%d,%d,%lld,", attribute->name, attribute->type, (long long)attribute->count);
    if (attribute->type == CUDNN_TYPE_BACKEND_DESCRIPTOR) {
      for (int64_t i = 0; i < attribute->count; i++)
        fprintf(writer->out, "%s%d", i ? "," : "[", number_of(writer, ((Descriptor **)attribute->values)[i]));
      fprintf(writer->out, attribute->count ? "]]" : "[]]");
      continue;
    }
    fputc('"', writer->out);
    for (size_t i = 0; i < attribute_size(attribute); i++)
      fprintf(writer->out, "%02x", ((unsigned char *)attribute->values)[i]);
    fputs("\"]", writer->out);
  }
  fputc(']', writer->out);
  writer->written = more;
  writer->written[writer->count++] = descriptor;
}
static char *question_of(const Descriptor *graph, int mode, int index) {
  char *question = NULL;
  size_t size;
  Writer writer = {.out = open_memstream(&question, &size)};
  if (!writer.out) return NULL;
  fprintf(writer.out, "{\"mode\":%d,\"index\":%d,\"graph\":[", mode, index);
  write_descriptor(&writer, graph);
  fputs("]}\n", writer.out);
  fclose(writer.out);
  free(writer.written);
  return question;
}
static char *answer_to(const Descriptor *descriptor, int index) {
  pthread_mutex_lock(&lock);
  char *question = question_of(descriptor->graph, descriptor->mode, index);
  char *answer = question ? asked(descriptor->device, question) : NULL;
  pthread_mutex_unlock(&lock);
  log_line(3, "cuDNN is asked %s", question ? question : "");
  log_line(3, "cuDNN answers %s", answer ? answer : "nothing");
  free(question);
  return answer;
}

/* Numbers, which the caller frees: of engines, whether one of ours comes behind them, and for each how many numerical
   notes it has, the notes, how many notes of behavior, the notes. */
int *ask_engines(const Descriptor *heuristics, int *count) {
  char *answer = answer_to(heuristics, -1), *at = answer, *end = answer;
  size_t length = answer ? strlen(answer) : 0;
  int *numbers = calloc(length / 2 + 1, sizeof *numbers);
  for (*count = 0; numbers && answer; at = end) {
    int number = (int)strtol(at, &end, 10);
    if (end == at) break;
    numbers[(*count)++] = number;
  }
  free(answer);
  return numbers;
}
/* Bytes, or -1 where cuDNN cannot plan it. */
int64_t ask_workspace(const Descriptor *engine) {
  char *answer = answer_to(engine, engine->index);
  int64_t workspace = answer ? strtoll(answer, NULL, 10) : 0;
  return free(answer), workspace;
}
