import { atRate, chatBody, repeat, type Attack } from '../attack.ts';
import { createGatewayKey } from '#libs/identity/gateway-key.ts';

// Attacks by requests to the gateway itself.

/** Expensive for every engine without a state table: 20,000 instructions, most of which run for each character. */
const dearRule = '(?:[a-z]{1,50}){1,20}[0-9]';

export const callerAttacks: readonly Attack[] = [
  {
    name: 'guardrail-expressions',
    what: 'six callers have a long text judged by an expensive expression',
    async run(scene) {
      const model = await scene.model('fast');
      const guardrail = { 'default.regexMatch': { rule: dearRule }, deny: false };
      const headers = { 'x-gateway-config': JSON.stringify({ input_guardrails: [guardrail] }) };
      const body = chatBody(model, { messages: [{ role: 'user', content: 'a'.repeat(200_000) }] });
      await repeat(scene, 6, 0, () => scene.call({ headers, body, patienceMs: 30_000 }));
    },
  },
  {
    name: 'wrong-keys',
    what: '300 calls a second, each with another key that is well formed and unknown',
    async run(scene) {
      const body = chatBody('@any/any');
      await atRate(scene, { perSecond: 300, openMax: 100 }, () =>
        scene.call({ headers: { authorization: `Bearer ${createGatewayKey().reveal()}` }, body }),
      );
    },
  },
  {
    name: 'readiness-and-metrics',
    what: '300 calls a second, without a key, of /health/ready and /metrics',
    async run(scene) {
      let next = 0;
      await atRate(scene, { perSecond: 300, openMax: 100 }, () =>
        scene.call({
          method: 'GET',
          path: (next += 1) % 2 === 0 ? '/health/ready' : '/metrics',
          headers: { authorization: '' },
        }),
      );
    },
  },
];
