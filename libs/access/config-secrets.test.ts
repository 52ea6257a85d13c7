import { expect, test } from 'vitest';
import { joinSecrets, refuseSecrets, splitSecrets } from './config-secrets.ts';

const webhook = { webhookURL: 'https://a.example', headers: { Authorization: 'Bearer CANARY' } };
const config = {
  strategy: { mode: 'fallback' },
  override_params: { api_key: 'a parameter of that name is no credential' },
  targets: [
    {
      provider: 'openai',
      api_key: 'sk-CANARY',
      before_request_hooks: [{ checks: [{ id: 'webhook', parameters: webhook }] }],
    },
    {
      targets: [
        { provider: 'bedrock', aws_secret_access_key: 'CANARY', output_guardrails: [{ 'default.webhook': webhook }] },
      ],
    },
  ],
};

test('credentials of every level are taken out of a config and put back where they were', () => {
  const { document, secrets } = splitSecrets(config);
  expect(JSON.stringify(document)).not.toContain('CANARY');
  expect(JSON.stringify(document)).toContain('a parameter of that name');
  expect(JSON.stringify(secrets)).not.toContain('CANARY');
  expect(Object.keys(secrets)).toHaveLength(4);
  expect(joinSecrets(document, secrets)).toEqual(config);
});

test('a config without credentials is itself', () => {
  const open = { virtual_key: 'a', targets: [] };
  expect(splitSecrets(open)).toEqual({ document: open, secrets: {} });
});

test('headers of a webhook may be stored unless one is named like a credential', () => {
  const of = (headers: unknown) => ({ input_guardrails: [{ webhook: { webhookURL: 'https://a.example', headers } }] });
  expect(() => refuseSecrets(of({ 'x-team': 'red' }), 'config')).not.toThrow();
  expect(() => refuseSecrets(of('{"x-auth-token":"t"}'), 'config')).toThrow(
    expect.objectContaining({ code: 'secret_in_config', param: 'config.input_guardrails[0].webhook.headers' }),
  );
});

test("a schema's own members are no headers", () => {
  const schema = { properties: { headers: { type: 'string', description: 'token' } } };
  expect(() => refuseSecrets({ output_guardrails: [{ jsonSchema: { schema } }] }, 'config')).not.toThrow();
});
