import { expect, test } from 'vitest';
import { containsSecrets, joinSecrets, redactSecrets, refuseCredentials, splitSecrets } from './config-secrets.ts';

const webhook = {
  webhookURL: 'https://user:CANARY@a.example/check?token=CANARY#CANARY',
  headers: { Authorization: 'Bearer CANARY', 'x-team': 'CANARY' },
};
const config = {
  strategy: { mode: 'fallback' },
  override_params: {
    api_key: 'CANARY',
    max_tokens: 5,
    prompt_cache_key: 'shown',
    stop: ['token'],
    tools: [
      {
        type: 'mcp',
        server_url: 'https://mcp.example/x?key=CANARY',
        headers: { Authorization: 'CANARY' },
        authorization: 'CANARY',
      },
    ],
  },
  targets: [
    {
      provider: 'openai',
      api_key: 'sk-CANARY',
      default_params: { extra: { 'X-Api-Key': 'CANARY', accessToken: 'CANARY', clientSecret: 'CANARY' } },
      before_request_hooks: [{ checks: [{ id: 'webhook', parameters: webhook }] }],
    },
    {
      targets: [
        {
          provider: 'bedrock',
          aws_secret_access_key: 'CANARY',
          output_guardrails: [{ 'default.webhook': { ...webhook, headers: '{"x-auth":"CANARY"}' } }],
        },
      ],
    },
  ],
};

test('secrets of every level are taken out of a config and put back where they were', () => {
  const { document, secrets } = splitSecrets(config);
  expect(JSON.stringify(document)).not.toContain('CANARY');
  expect(JSON.stringify(secrets)).not.toContain('CANARY');
  expect(joinSecrets(document, secrets)).toEqual(config);
  expect(redactSecrets(config)).toEqual(document);
  expect(redactSecrets(document)).toEqual(document);
});

test('what stands in the place of a secret says which one it is', () => {
  const { document } = splitSecrets(config);
  expect(document).toMatchObject({
    override_params: {
      api_key: '[redacted]',
      max_tokens: 5,
      prompt_cache_key: 'shown',
      stop: ['token'],
      tools: [{ server_url: 'https://mcp.example/x?[redacted]', headers: { Authorization: '[redacted]' } }],
    },
    targets: [
      {
        before_request_hooks: [
          {
            checks: [
              {
                parameters: {
                  webhookURL: 'https://a.example/[redacted]',
                  headers: { Authorization: '[redacted]', 'x-team': '[redacted]' },
                },
              },
            ],
          },
        ],
      },
      { targets: [{ output_guardrails: [{ 'default.webhook': { headers: '{"x-auth":"[redacted]"}' } }] }] },
    ],
  });
});

test.each([
  ' https://a.example/check?token=CANARY',
  '\thttps://user:CANARY@a.example/check',
  'https://a.example/a b?token=CANARY',
  'https://a.example/check\n?token=CANARY',
  'https://us er:CANARY@a.example/check',
])('the secret of a webhook is taken out of %j, which is a URL however it is written', (webhookURL) => {
  const loose = { input_guardrails: [{ webhook: { webhookURL } }] };
  const { document, secrets } = splitSecrets(loose);
  expect(JSON.stringify(document)).not.toContain('CANARY');
  expect(joinSecrets(document, secrets)).toEqual(loose);
  expect(joinSecrets(document, {})).toBeNull();
});

test('a config whose secrets are not there is not taken for a whole one', () => {
  const { document, secrets } = splitSecrets(config);
  for (const place of Object.keys(secrets)) {
    const { [place]: _lost, ...others } = secrets;
    expect(joinSecrets(document, others)).toBeNull();
  }
});

test.each([
  {},
  { virtual_key: 'a', targets: [] },
  { input_guardrails: [{ webhook: { webhookURL: 'https://a.example', headers: {} } }] },
  { output_guardrails: [{ jsonSchema: { schema: { properties: { headers: { type: 'string', token: 'x' } } } } }] },
  { override_params: { model: 'm', metadata: { tokens: '5', url: 'https://a.example/b' } } },
])('%j holds no secret and is itself', (open) => {
  expect(splitSecrets(open)).toEqual({ document: open, secrets: {} });
  expect(containsSecrets(open)).toBe(false);
  expect(() => refuseCredentials(open, 'config')).not.toThrow();
});

test('a credential of a provider is refused where a virtual key belongs', () => {
  expect(() => refuseCredentials({ targets: [{ api_key: 'sk-CANARY' }] }, 'config')).toThrow(
    expect.objectContaining({ code: 'secret_in_config', param: 'config.targets[0].api_key' }),
  );
});

test('what is shown in the place of a secret is not taken for one', () => {
  const { document } = splitSecrets({ input_guardrails: [{ webhook }] });
  expect(() => refuseCredentials(document, 'config')).toThrow(
    expect.objectContaining({ code: 'invalid_value', param: 'config.input_guardrails[0].webhook.webhookURL' }),
  );
});
