import { chatBody, pause, repeat, untilOver, type Attack, type Scene } from '../attack.ts';
import { setUpSilentResolver } from '../rig/silent-resolver.ts';

// Attacks of one tenant's calls on the connections of the process.

/** A call to a provider of the caller's own, which never answers. */
async function callHost(scene: Scene, host: string, patienceMs: number): Promise<void> {
  const { port } = new URL(scene.providerUrl);
  await scene.call({
    headers: {
      'x-gateway-api-key': scene.key,
      authorization: 'Bearer sk-any',
      'x-gateway-provider': 'openai-compatible',
      'x-gateway-custom-host': `http://${host}:${port}/hang/v1`,
    },
    body: chatBody('any'),
    patienceMs,
  });
}

/** `127.1.x.y`, a different one for each number. */
const hostOf = (index: number): string => `127.1.${Math.floor(index / 250)}.${1 + (index % 250)}`;

const hosts = 1_200;

/** The same server as another origin, whose name is in /etc/hosts. */
const byName = (url: string): string => url.replace('127.0.0.1', 'localhost');

export const connectionAttacks: readonly Attack[] = [
  {
    name: 'aborted-calls-to-many-hosts',
    what: `one caller leaves calls to ${hosts} different hosts; then the victim calls one that is new`,
    setUp: async () =>
      process.platform === 'linux'
        ? { undo: async () => {} }
        : { missing: 'only Linux has all of 127.0.0.0/8 without asking' },
    async prepare(scene) {
      await scene.listenOn(Array.from({ length: hosts }, (_value, index) => hostOf(index)));
      let next = 0;
      const caller = async (): Promise<void> => {
        while (next < hosts) await callHost(scene, hostOf(next++), 250);
      };
      await Promise.all(Array.from({ length: 100 }, caller));
      await scene.moveVictim(byName(scene.simulatorUrl));
    },
    async run(scene) {
      let next = 0;
      await repeat(scene, 4, 250, () => callHost(scene, hostOf(next++ % hosts), 250));
    },
  },
  {
    name: 'hanging-calls-to-a-shared-provider',
    what: '1,400 calls of one tenant, with four keys, hang at the provider that the victim has another key for',
    sharesProvider: true,
    async prepare(scene) {
      // With four keys, so that the victim is not protected by a limit on one of them.
      const models = await Promise.all(['hang-1', 'hang-2', 'hang-3', 'hang-4'].map((name) => scene.model(name)));
      const bodies = models.map((model) => chatBody(model));
      // Not all at once: the effect of calls that hang is measured, not that of their start.
      for (let call = 0; call < 1_400; call += 1) {
        void repeat(scene, 1, 1_000, () => scene.call({ body: bodies[call % 4] ?? '' }));
        await pause(scene, 2);
      }
    },
    run: untilOver,
  },
  {
    name: 'names-whose-dns-hangs',
    what: '60 calls to names that no name server answers for; then the victim calls a name of /etc/hosts',
    setUp: setUpSilentResolver,
    async prepare(scene) {
      for (let call = 0; call < 60; call += 1) void callHost(scene, `first-${call}.silent.test`, 60_000);
      // Until their names have been looked up.
      await new Promise((resolve) => setTimeout(resolve, 500));
      await scene.moveVictim(byName(scene.simulatorUrl));
    },
    async run(scene) {
      let next = 0;
      await repeat(scene, 60, 100, () => callHost(scene, `host-${(next += 1)}.silent.test`, 60_000));
    },
  },
];
