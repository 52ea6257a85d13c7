// Runs in the browser. `SwaggerUIBundle` comes from swagger-ui-bundle.js.
const dark = matchMedia('(prefers-color-scheme: dark)');
const follow = () => document.documentElement.classList.toggle('dark-mode', dark.matches);
dark.addEventListener('change', follow);
follow();

// The address of the server. A proxy can serve it below a path.
const server = new URL('..', document.currentScript.src).href.replace(/\/$/, '');

const show = async () => {
  const spec = await (await fetch(`${server}/openapi.json`)).json();
  // The document contains one address of this server. The page may have been opened under another address, which is the
  // only one that it can call.
  spec.servers = [{ url: server }];
  SwaggerUIBundle({
    spec,
    dom_id: '#reference',
    deepLinking: true,
    docExpansion: 'none',
    defaultModelsExpandDepth: -1,
    displayRequestDuration: true,
    filter: true,
    tryItOutEnabled: true,
    validatorUrl: null, // A validator would send the document to a server on the internet.
  });
};

show().catch(() => {
  document.querySelector('#reference').textContent = 'The API did not answer. Reload the page to try again.';
});
