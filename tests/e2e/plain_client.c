// SPDX-License-Identifier: Apache-2.0
// The smallest client there is, for C libraries other than this machine's (musl):
//   plain_client PORT HOST...
// For each host getaddrinfo(), then at once connect() to every address that it gave; prints
// "HOST ok ADDRESS..." or "HOST ERROR". Exit code 1: there was an error.
#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static int connect_to(const struct addrinfo* entry) {
  char text[64] = "";
  getnameinfo(entry->ai_addr, entry->ai_addrlen, text, sizeof text, NULL, 0, NI_NUMERICHOST);
  int client = socket(entry->ai_family, SOCK_STREAM, 0);
  int failed = client < 0 || connect(client, entry->ai_addr, entry->ai_addrlen) != 0;
  if (failed) {
    printf(" %s: %s", text, strerror(errno));
  } else {
    printf(" %s", text);
  }
  if (client >= 0) close(client);
  return failed;
}

static int visit(const char* host, const char* port) {
  struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
  struct addrinfo* found = NULL;
  int error = getaddrinfo(host, port, &hints, &found);
  if (error != 0) {
    printf("%s %s\n", host, gai_strerror(error));
    return 1;
  }
  printf("%s ok", host);
  int failed = 0;
  for (const struct addrinfo* entry = found; entry != NULL; entry = entry->ai_next) {
    failed |= connect_to(entry);
  }
  printf("\n");
  freeaddrinfo(found);
  return failed;
}

int main(int count, char** arguments) {
  int failed = 0;
  for (int i = 2; i < count; ++i) failed |= visit(arguments[i], arguments[1]);
  return failed;
}
