import { existsSync, mkdirSync, readFileSync, rmdirSync, writeFileSync } from 'node:fs';
import path from 'node:path';

/** What compose gives each container: `mem_limit: 1g`. */
export const memoryLimitBytes = 1_073_741_824;

/** A limit of memory for one process and what it starts. */
export type MemoryGroup = {
  /** Put in front of the command that is to run inside (startRigProcess). */
  launcher: readonly string[];
  /** Of Node, where it cannot see the limit by itself. */
  flags: readonly string[];
  /** Processes that the kernel ended because of the limit. */
  kills(): number;
  /** When no process is left in it. */
  remove(): void;
};

type Hierarchy = {
  folder: string;
  /** Files of a group: the limit of memory, that of memory and swap together or of swap, and where kills are counted. */
  limit: string;
  swap: readonly [file: string, value: string];
  kills: string;
};

// https://docs.kernel.org/admin-guide/cgroup-v1/memory.html and …/cgroup-v2.html
const versions = [
  {
    version: 'v1',
    mount: '/sys/fs/cgroup/memory',
    ownPath: /^\d+:memory:(.*)$/m,
    limit: 'memory.limit_in_bytes',
    swap: ['memory.memsw.limit_in_bytes', String(memoryLimitBytes)],
    kills: 'memory.oom_control',
  },
  {
    version: 'v2',
    mount: '/sys/fs/cgroup',
    ownPath: /^0::(.*)$/m,
    limit: 'memory.max',
    swap: ['memory.swap.max', '0'],
    kills: 'memory.events',
  },
] as const;

/**
 * How memory can be limited here: `cgroup v1` or `v2`, or null where groups cannot be made (no root, no Linux, a
 * read-only mount), and how to make one. Without groups Node gets the heap limit that it takes in 1 GiB, and whoever
 * measures has to look at the resident memory himself.
 */
export function findMemoryGroups(): { kind: string | null; create(name: string): MemoryGroup } {
  for (const { version, mount, ownPath, ...files } of versions) {
    const own = ownPath.exec(readOrEmpty('/proc/self/cgroup'))?.[1] ?? '/';
    // Below our own group where that is possible, so that the limits around us go on to hold; v2 allows none below a
    // group that has processes, so then beside it or further up.
    for (let at = own; ; at = path.dirname(at)) {
      const parent = path.join(mount, at);
      const made = tryGroup(path.join(parent, `sluice-abuse-${process.pid}-probe`), files);
      if (made !== null) {
        made.remove();
        return {
          kind: `cgroup ${version}`,
          create(name) {
            const group = tryGroup(path.join(parent, `sluice-abuse-${process.pid}-${name}`), files);
            if (group === null) throw new Error(`no cgroup could be made in ${parent}`);
            return group;
          },
        };
      }
      if (at === '/' || at === '.') break;
    }
  }
  const unlimited: MemoryGroup = {
    launcher: [],
    flags: ['--max-old-space-size=512'],
    kills: () => 0,
    remove: () => {},
  };
  return { kind: null, create: () => unlimited };
}

function tryGroup(folder: string, files: Omit<Hierarchy, 'folder'>): MemoryGroup | null {
  const remove = (): void => {
    try {
      rmdirSync(folder);
    } catch {
      // A process that was killed just now is still in it; an empty group that stays costs nothing.
    }
  };
  try {
    mkdirSync(folder);
  } catch {
    return null;
  }
  try {
    // cgroup files exist or the controller is not on here; writeFileSync would fail to create one.
    writeFileSync(path.join(folder, files.limit), String(memoryLimitBytes), { flag: 'r+' });
    const [swapFile, swapValue] = files.swap;
    if (existsSync(path.join(folder, swapFile))) writeFileSync(path.join(folder, swapFile), swapValue, { flag: 'r+' });
  } catch {
    remove();
    return null;
  }
  return {
    // The shell enters the group and becomes the program, which sees the limit from its first moment on: Node sizes its
    // heap by it, in v1 and v2 alike (uv_get_constrained_memory).
    launcher: ['/bin/sh', '-c', 'echo $$ >"$0" && exec "$@"', path.join(folder, 'cgroup.procs')],
    flags: [],
    kills: () => Number(/^oom_kill (\d+)$/m.exec(readOrEmpty(path.join(folder, files.kills)))?.[1] ?? 0),
    remove,
  };
}

function readOrEmpty(file: string): string {
  try {
    return readFileSync(file, 'utf8');
  } catch {
    return '';
  }
}
