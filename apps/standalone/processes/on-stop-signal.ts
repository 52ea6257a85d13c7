/** One Ctrl-C can arrive twice: from the terminal, which signals the whole process group, and from npm. */
const sameKeyPressMs = 500;

/** Calls `first` at the first SIGTERM, SIGINT or SIGHUP and `again` at a later one. */
export function onStopSignal({ first, again }: { first: (signal: string) => void; again: () => void }): void {
  let firstAt: number | undefined;
  for (const signal of ['SIGTERM', 'SIGINT', 'SIGHUP'] as const) {
    process.on(signal, () => {
      if (firstAt === undefined) {
        firstAt = performance.now();
        first(signal);
      } else if (performance.now() - firstAt > sameKeyPressMs) again();
    });
  }
}
